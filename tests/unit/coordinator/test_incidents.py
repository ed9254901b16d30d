"""What is written up of a fall, whatever was heard of it."""

from pathlib import Path

from sparkd.clock import Instant
from sparkd.coordinator.events import EventLog
from sparkd.coordinator.incidents import Incidents
from sparkd.coordinator.store import Store
from sparkd.fleet.nodes import NOTHING_YET, Node
from sparkd.fleet.state import Fleet
from sparkd.gang.record import GangRecord
from sparkd.gang.state import WriteIncident
from sparkd.records.defaults import DEFAULTS
from sparkd.records.event import Event
from sparkd.records.fall import Fall
from sparkd.records.incident import Incident
from sparkd.records.report import Caller, LogChunk, Report, TaskResult
from sparkd.records.verdict import Verdict
from tests.unit.coordinator.test_store import INTENT, SPEC

NOW = Instant(50.0, 1000.0)
NODE = Node("n", "spark-1", clock_error_s=0.001)
FALL = WriteIncident(Fall(1, 0, "spark-1", "it ended", wall=NOW.wall, code=1))
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory."
KILLED = "vllm-1 exited with code 137"


class Standing:
    def now(self) -> Instant:
        return NOW


class Broken(EventLog):
    def recent(self, limit: int, deployment: str | None = None) -> tuple[Event, ...]:
        raise ValueError(f"no {limit} events of {deployment}")


async def never_asked(*question: object) -> TaskResult:
    raise AssertionError(question)


async def never_called(nodes: object) -> tuple[Verdict, ...]:
    raise AssertionError(nodes)


def written(
    folder: Path, *texts: str, events: EventLog | None = None, kernel: tuple[str, ...] = ()
) -> Incident:
    """The incident of FALL after a report with these pieces of rank 0's log."""
    fleet = Fleet("here", 1, "i", 0.0, nodes={"n": NODE})
    store = Store(folder / "c.sqlite")
    incidents = Incidents(
        store, events or EventLog(), Standing(), None, fleet=lambda: fleet, ask=never_asked, call=never_called
    )
    tails = tuple(LogChunk(SPEC.name, 0, text) for text in texts)
    incidents.hear(NODE, Report(Caller("n", "b", "r", 1), 0.0, 0.0, NOTHING_YET, tails=tails, kernel=kernel))
    record = GangRecord("d", INTENT, generation=1, nodes=("n",), specs=(SPEC,))
    told = incidents.begin(FALL, record, fleet, NOW)
    store.close()
    return told


def stamped(text: str) -> str:
    return f"{10**10} {int((NOW.wall - 0.5) * 1e9)} 2 {text}\n"


def causes(incident: Incident) -> list[str]:
    told = incident.explanation
    return [one.id for one in (told.cause, *told.secondary) if one] if told else []


def test_a_line_with_any_characters_is_one_line(tmp_path: Path) -> None:
    """An engine writes what its users say: a line may hold another that looks like one with a time."""
    for place, inner in enumerate(("\u2028", "\x85", "\x0b", "\x0c", "\x1c")):
        (tmp_path / str(place)).mkdir()
        told = written(tmp_path / str(place), stamped(f"said{inner}{stamped(KILLED)}"))
        assert causes(told) == ["UNKNOWN"], repr(inner)


def test_numbers_that_are_none_are_left_out(tmp_path: Path) -> None:
    odd = ("1 ① 2 x\n", f"1 {'9' * 5000} 2 x\n", "1  2 x\n", "1 -5 2 x\n")
    told = written(tmp_path, *odd, stamped(OUT_OF_MEMORY))
    assert causes(told) == ["CUDA_OOM"]
    assert [one.text for one in told.timeline if one.kind == "line"] == [OUT_OF_MEMORY]


def test_what_cannot_be_explained_is_an_incident_all_the_same(tmp_path: Path) -> None:
    told = written(tmp_path, stamped(OUT_OF_MEMORY), events=Broken())
    assert (told.fall, told.explanation, told.timeline) == (FALL.fall, None, ())


def test_a_line_of_the_kernel_is_as_old_as_a_look(tmp_path: Path) -> None:
    xid = "NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off the bus."
    (entry,) = [one for one in written(tmp_path, kernel=(xid,)).timeline if one.kind == "kernel"]
    assert NOW.wall - entry.error_s < entry.at < NOW.wall
    assert entry.error_s == DEFAULTS.watch_s


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    """It is read while reports wait."""
    fillers = [stamped(f"step {number}") * 1000 for number in range(400)]
    assert causes(written(tmp_path, stamped(OUT_OF_MEMORY), *fillers)) == ["UNKNOWN"]

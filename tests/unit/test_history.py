"""The oracle of the chaos run: each kind of violation is seen, and a good history has none."""

from dataclasses import replace

import pytest

from sparkd.records.event import Event
from sparkd.records.status import DeploymentStatus, NodeStatus, Progress, RankStatus, Status
from sparkd_agent.procfs import ProcessRef
from tests.bed.cluster import Sighting
from tests.bed.history import Asked, History, Sample, promises, violations

RUNNING = frozenset({0, 1, 2, 3})


def event(number: int, at: float, kind: str = "phase", *, to: str | None = None, **more: object) -> Event:
    made = Event(f"1-{number}", at, kind, "why", deployment="d", generation=1, to=to)
    return replace(made, **more)  # type: ignore[arg-type]


def node(number: int, name: str, state: str) -> Event:
    return event(number, 0.0, "node", to=state, node=name, deployment=None, generation=None)


def rank(generation: int, of: int, node: int, pid: int = 0, deployment: str = "d") -> Sighting:
    name = f"sparkd-{deployment}-g{generation}-r{of}"
    return Sighting(node, name, ProcessRef(pid or 100 * generation + of, 7), leader=True)


def status(phase: str, generation: int, desired: str = "up") -> Status:
    progress = Progress(None, "", 0, 0)
    ranks = tuple(
        RankStatus(r, f"local-{r + 1}", "127.0.0.1", "serving", None, None, progress) for r in (0, 1)
    )
    one = DeploymentStatus("d", "tiny", "x", desired, phase, "why", generation, 0, "", ranks=ranks)  # type: ignore[arg-type]
    return Status((one,), (NodeStatus("1", "local-1", "alive", ()),))


LAUNCHED = (
    node(1, "local-1", "alive"),
    node(2, "local-2", "alive"),
    node(3, "local-3", "silent"),
    event(4, 1.0, to="launching"),
    event(5, 20.0, to="launching", generation=2),
)
GANG = (rank(1, 0, 1), rank(1, 1, 2))


def test_a_good_history() -> None:
    samples = [Sample(2.0 + i, GANG, RUNNING, status("ready", 1)) for i in range(5)]
    assert violations(History(samples, events=LAUNCHED)) == []


def test_a_fault_in_a_rule_is_a_violation() -> None:
    (told,) = violations(History([], events=(event(1, 0.0, "fault", reason="KeyError: 'a'"),)))
    assert "KeyError: 'a'" in told


def one_look(*seen: Sighting, at: float = 21.0) -> History:
    return History([Sample(at, seen, RUNNING)], events=LAUNCHED)


def over(seconds: float, seen: tuple[Sighting, ...], running: frozenset[int], phase: str) -> History:
    times = [2.0 + i / 5 for i in range(int(seconds * 5))]
    return History([Sample(at, seen, running, status(phase, 1)) for at in times], events=LAUNCHED)


BAD = {
    "together with generation 2": one_look(rank(1, 0, 1), rank(2, 0, 2)),
    "no event tells of its generation's launch": one_look(rank(3, 0, 1)),
    "had ranks of": one_look(rank(1, 0, 1), rank(1, 0, 1, deployment="e")),
    "was started 2 times": History(
        [Sample(2.0, (rank(1, 0, 1, pid=5),), RUNNING), Sample(3.0, (rank(1, 0, 1, pid=6),), RUNNING)],
        events=LAUNCHED,
    ),
    "came after": History(events=(event(2, 0.0), event(1, 1.0))),
    "fell from generation 2 to 1": History(
        [Sample(2.0, (), RUNNING, status("failed", 2)), Sample(3.0, (), RUNNING, status("failed", 1))]
    ),
    "was told ready for more than 3 s without rank 1": over(4, GANG[:1], RUNNING, "ready"),
    "was told ready for more than 35 s without rank 1": over(36, GANG[:1], RUNNING - {2}, "ready"),
    "after its end was told": History(
        [Sample(2.0 + i, GANG, RUNNING) for i in range(13)],
        events=(*LAUNCHED[:4], event(9, 1.5, to="stopped")),
    ),
    "has no reason": History(events=(event(1, 0.0, reason=" "),)),
    "was told twice": History(
        events=tuple(event(n, 0.0, "exit", reason="leader (pid 7) exited with 1", rank=0) for n in (1, 2))
    ),
}


@pytest.mark.parametrize("text", BAD)
def test_a_violation_is_seen(text: str) -> None:
    found = violations(BAD[text])
    assert any(text in one for one in found), found


def test_generations_may_meet_where_the_older_ones_node_was_away() -> None:
    assert violations(one_look(rank(1, 1, 3), rank(2, 0, 2))) == []


def test_a_death_that_nobody_could_see_is_no_lie_yet() -> None:
    assert violations(over(20, GANG[:1], RUNNING - {2}, "ready")) == []


@pytest.mark.parametrize(
    ("asked", "desired", "kept"),
    [
        ([("up", True), ("down", True)], "up", False),
        ([("up", True), ("down", True)], "down", True),
        ([("up", True), ("down", False)], "up", True),
        ([("up", True), ("down", False)], "down", True),
        ([("up", True), ("restart", True)], "down", False),
    ],
)
def test_what_was_acknowledged_is_kept(asked: list[tuple[str, bool]], desired: str, kept: bool) -> None:
    history = History(asked=[Asked(float(i), "d", verb, sure) for i, (verb, sure) in enumerate(asked)])
    assert (not list(promises(history, status("ready", 1, desired)))) is kept

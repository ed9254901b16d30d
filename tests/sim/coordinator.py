"""The coordinator's process as it is played: a fleet in memory, and what its disk holds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sparkd.clock import Instant
from sparkd.fleet.nodes import Node
from sparkd.fleet.state import Fleet
from sparkd.gang import machine as gang_machine
from sparkd.gang.collective import CollectiveAsk
from sparkd.gang.record import GangRecord
from sparkd.gang.state import Answers, Launch
from sparkd.records.defaults import Defaults
from sparkd.records.verdict import Severity, Verdict
from tests.sim.node import light_specs

HOLDER = "holder"
LIMITS = Defaults(
    startup_hold_s=5.0,
    facts_s=2.0,
    launching_s=8.0,
    loading_s=8.0,
    warming_s=8.0,
    collective_s=6.0,
    collective_short_s=3.0,
)


def plan(record: GangRecord, nodes: tuple[Node, ...], answers: Mapping[str, Answers]) -> Launch:
    ids = tuple(node.id for node in nodes)
    specs = light_specs(record.name, record.generation, ids, record.rendezvous_ports[-1], record.intent)
    return Launch(specs, tuple(verdict for node in ids for verdict in _judged(node, answers[node], record)))


def _judged(node: str, answers: Answers, record: GangRecord) -> Iterator[Verdict]:
    """As the real rules do: without its files no rank starts, of a silent machine one is only warned."""
    files, facts = answers["files"], answers["facts"]
    if files is None or not files.ok:
        waived = "MODEL_MISSING" in record.intent.forced
        yield Verdict("MODEL_MISSING", Severity.BLOCK, "the model is not here", node=node, waived=waived)
    if facts is None or not facts.ok:
        yield Verdict("FACTS_UNKNOWN", Severity.WARN, "nothing is known of this machine", node=node)


@dataclass
class Link:
    """How an agent stands with the coordinator, on its own side."""

    run: str = ""
    greeted: bool = False
    answered: float = 0.0
    due: bool = False
    turns: int = 0
    peer: "Coordinator | None" = None
    """The coordinator it talks to."""


class Coordinator:
    """The coordinator's process: fleet in memory, records and term on disk."""

    def __init__(self, enrolled: tuple[str, ...], holder: str = HOLDER) -> None:
        self.enrolled = enrolled
        self.holder = holder
        self.starts = 0
        self.lives: set[tuple[int, str]] = set()
        self.records: dict[str, GangRecord] = {}
        self.copies: list[tuple[set[tuple[int, str]], dict[str, GangRecord]]] = []
        """Backups of the database, oldest first."""
        self.fleet: Fleet | None = None
        self.proves = False
        """A collective probe goes before launches of two ranks."""

    def plan(self, record: GangRecord, nodes: tuple[Node, ...], answers: Mapping[str, Answers]) -> Launch:
        launch = plan(record, nodes, answers)
        if not self.proves or len(nodes) < 2:
            return launch
        key = " ".join(f"{node.id} {node.boot}" for node in nodes)
        return replace(launch, collective=CollectiveAsk(key, launch.specs))

    def start(self, now: float) -> None:
        self.starts += 1
        term = 1 + max((term for term, _ in self.lives), default=0)
        instance = f"instance{self.starts}"
        self.lives.add((term, instance))
        instant = Instant(now, now)
        self.fleet = Fleet(
            holder=self.holder,
            term=term,
            instance=instance,
            lives=frozenset(self.lives),
            old=len(self.lives) == 1,
            started=now,
            enrolled=frozenset(self.enrolled),
            nodes={n: Node(n, n) for n in self.enrolled},
            gangs={name: gang_machine.restore(r, instant) for name, r in self.records.items()},
            planner=self.plan,
        )

    def kill(self) -> None:
        self.fleet = None

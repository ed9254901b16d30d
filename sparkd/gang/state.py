"""What the gang machine computes with: its state, what can happen to it, and what it asks for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from sparkd.fleet.nodes import Node
from sparkd.gang.collective import Collective, CollectiveAsk
from sparkd.gang.record import GangRecord
from sparkd.records.document import Task
from sparkd.records.fall import Fall
from sparkd.records.intent import Intent
from sparkd.records.rank import Probe, RankSpec
from sparkd.records.report import Exit, TaskResult
from sparkd.records.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Waiting:
    """What the present phase waits for. Moments are on the coordinator's monotonic clock."""

    what: str
    since: float
    then: str
    rank: int | None = None
    node: str | None = None
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class PendingTask:
    """A question that a node was asked; `until` on the monotonic clock."""

    node: str
    task: Task
    until: float
    result: TaskResult | None = None


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of a probe, while nothing of its key changes."""

    key: str
    proved: bool
    verdicts: tuple[Verdict, ...] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a decision could not be made: an error in a rule, and when it was last seen (monotonic)."""

    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class Gang:
    """One deployment: the durable record and what was observed since this coordinator started."""

    record: GangRecord
    phase_since: float = 0.0
    waiting: Waiting | None = None
    conditions: tuple[str, ...] = ()
    tasks: tuple[PendingTask, ...] = ()
    gone: frozenset[str] = frozenset()
    """Nodes that have proved, since the present `recovering` or `stopping` began, that nothing is left."""
    unproven: frozenset[str] = frozenset()
    """Nodes that could not be asked; the new rendezvous port fences what may still run there."""
    stacks_until: float | None = None
    """Until then ranks that are to be ended are left, to tell where they are."""
    stop_since: float | None = None
    retry_at: float | None = None
    launched_at: float | None = None
    """When the present generation was committed; None after a restart of the coordinator."""
    progress_at: float = 0.0
    head_gone: bool = False
    """While stopping: rank 0 has ended, followers may be killed."""
    ports_skipped: frozenset[int] = frozenset()
    """Found taken during the present preflight."""
    ready_since: float | None = None
    restored_at: float = 0.0
    """When this coordinator took the gang over from an earlier life; 0 for one it began itself."""
    endpoint_proof: float | None = None
    """When the endpoint last answered a pulse of our own."""
    proof_asked: float | None = None
    memory_since: float | None = None
    """When the memory-returned gate began to wait."""
    memory_back_since: float | None = None
    evicted: bool = False
    blocked_since: float | None = None
    """When the first of the launches was blocked that nobody has asked for: after a fall, or a reboot."""
    carried: tuple[Verdict, ...] = ()
    """Warnings that the next launch goes with."""
    collective: Collective | None = None
    """The probe that runs before this launch."""
    tried: Tried | None = None
    """The one that ran before this launch."""
    probe_left: frozenset[str] = frozenset()
    """Ranks of a probe that is over or was broken off: what nodes must be rid of as of a rank of the gang."""
    fault: Fault | None = None
    """While a rule fails: everything else here is as the last whole decision left it."""

    @property
    def name(self) -> str:
        return self.record.name


# What can happen. ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Up:
    """A person asks for the deployment. Judged before: same intent and running never gets here."""

    intent: Intent


@dataclass(frozen=True, slots=True)
class Down:
    pass


@dataclass(frozen=True, slots=True)
class Restart:
    """Harmless when repeated: it names the generation that the person saw."""

    generation: int


@dataclass(frozen=True, slots=True)
class Reported:
    """A node was heard: its view in the world is new."""

    node: str


@dataclass(frozen=True, slots=True)
class Exited:
    """A process of a rank ended. May arrive late and more than once."""

    node: str
    exit: Exit


@dataclass(frozen=True, slots=True)
class TaskDone:
    node: str
    result: TaskResult


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed, or something in the world changed."""


@dataclass(frozen=True, slots=True)
class EndpointPulsed:
    """What became of a pulse that the coordinator sent itself.

    `unanswered`: it was delivered, and no token came in the pulse's time. `undelivered` says nothing.
    """

    outcome: Literal["answered", "unanswered", "undelivered"]


GangEvent = Up | Down | Restart | Reported | Exited | TaskDone | EndpointPulsed | Tick


# What it asks for. -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Say:
    """Store and stream one event."""

    kind: str
    reason: str
    node: str | None = None
    rank: int | None = None
    from_: str | None = None
    to: str | None = None


@dataclass(frozen=True, slots=True)
class Stood:
    """What a node answered when it was asked where the threads of its rank are; None: nothing, in time."""

    rank: int
    node: str
    result: TaskResult | None


@dataclass(frozen=True, slots=True)
class WriteIncident:
    fall: Fall
    verdicts: tuple[Verdict, ...] = ()
    stood: tuple[Stood, ...] = ()


@dataclass(frozen=True, slots=True)
class PulseEndpoint:
    """Send a pulse to rank 0's API from here: its agent cannot be asked."""

    probe: Probe


@dataclass(frozen=True, slots=True)
class Complain:
    """Write down where a rule has a fault: it is ours, and no user's."""

    error: Exception


GangCommand = Say | WriteIncident | PulseEndpoint | Complain


@dataclass(frozen=True, slots=True)
class Launch:
    """One attempt as the planner made it."""

    specs: tuple[RankSpec, ...]
    verdicts: tuple[Verdict, ...] = ()
    collective: CollectiveAsk | None = None
    """What is to be proved before; None where ranks meet over no network."""


Answers = Mapping[str, TaskResult | None]
"""Of one node to a preflight, by the task's kind; None for one that did not come."""

Planner = Callable[[GangRecord, tuple[Node, ...], Mapping[str, Answers]], Launch]
"""(record with generation and ports set, nodes in rank order, answers by node id) -> the rank specs and every
finding of the preflight. Raises ProfileError when the intent cannot be planned on these nodes."""


@dataclass(frozen=True, slots=True)
class World:
    """What a gang may look at: the nodes, and what other deployments hold."""

    nodes: Mapping[str, Node]
    occupied: Mapping[str, str] = field(default_factory=dict)
    """Node id -> the other deployment whose rank is, or is about to be, there; or a probe's that is stuck."""
    api_ports: frozenset[int] = frozenset()
    """Of other deployments."""
    planner: Planner | None = None
    silence_counts_from: float = 0.0
    """The end of the coordinator's hold: nobody could be heard before."""
    probe_number: int = 1
    """For the next collective probe: no node has heard of it."""
    proven: frozenset[str] = frozenset()
    """Keys of collective probes that have passed, of all deployments."""

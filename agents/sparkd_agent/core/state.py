"""What the agent's core computes with: its state, what can happen, and what it asks for."""

from dataclasses import dataclass, field
from typing import Literal

from sparkd.records.document import DeploymentSerial, Document, Revision, Task
from sparkd.records.names import RankName
from sparkd.records.rank import RankSpec
from sparkd.records.report import RankState, Refusal

RowState = Literal["intent", "started", "exited", "gone"]


@dataclass(frozen=True, slots=True)
class Existing:
    """A rank of which something may be left on the node."""

    name: RankName
    spec: RankSpec
    state: RankState
    served: bool = False
    """Its API was up: it may have requests to end."""
    stopping: bool = False
    """It was told to end; said once."""
    told_gone: bool = False
    """The coordinator has acknowledged a report that shows it gone."""
    headless_since: float | None = None
    """Since when rank 0 has taken no connection, as far as this follower's node has tried."""


@dataclass(frozen=True, slots=True)
class Core:
    """`accepted` and the fences above it are durable before anything is started under them."""

    boot: str
    holder: str
    term: int = 0
    instance: str = ""
    accepted: Revision = field(default_factory=lambda: Revision(0, 0))
    document: Document | None = None
    """The newest one received by *this run* of the agent; without one nothing is started."""
    ranks: dict[str, Existing] = field(default_factory=dict)
    rows: dict[str, RowState] = field(default_factory=dict)
    """The ledger's rows of this boot, by rank name."""
    folders: frozenset[str] = frozenset()
    """Names with a shim's folder, of any boot: they were started once."""
    generations: dict[str, int] = field(default_factory=dict)
    """Highest generation seen of each deployment; never falls."""
    deployments: dict[str, DeploymentSerial] = field(default_factory=dict)
    refusals: dict[str, Refusal] = field(default_factory=dict)
    lease_until: float = 0.0
    begun: frozenset[str] = frozenset()
    """Tasks of the document that this run has begun. Order keeps an older list from coming back."""


# What can happen. -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DocumentCame:
    document: Document


@dataclass(frozen=True, slots=True)
class LeaseGiven:
    lease_s: float


@dataclass(frozen=True, slots=True)
class RankChanged:
    name: str
    state: RankState
    served: bool = False


@dataclass(frozen=True, slots=True)
class StartFailed:
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class GoneTold:
    """A report that showed these ranks gone was acknowledged."""

    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class EngineFrozen:
    """Rank 0's prober has found the engine wedged."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class HeadTried:
    """A follower's node has tried whether rank 0 takes a connection."""

    name: str
    reached: bool


@dataclass(frozen=True, slots=True)
class MemoryShort:
    """The node's memory does not bear this rank any longer, and the coordinator had its time."""

    name: str
    reason: str


CoreEvent = (
    DocumentCame | LeaseGiven | RankChanged | StartFailed | GoneTold | EngineFrozen | HeadTried | MemoryShort
)


# What it asks for, in this order: kill first, then write, then start. --------------------------------


@dataclass(frozen=True, slots=True)
class Kill:
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """SIGTERM to the leader, SIGKILL to everything after the grace."""

    name: str
    grace_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class SaveFences:
    """Make the order and what every agent remembers of every deployment durable."""

    accepted: Revision
    instance: str
    deployments: tuple[DeploymentSerial, ...]
    generations: dict[str, int]


@dataclass(frozen=True, slots=True)
class Start:
    """Commit the intent, then start, then commit that it is started."""

    spec: RankSpec


@dataclass(frozen=True, slots=True)
class Forget:
    name: str


@dataclass(frozen=True, slots=True)
class Begin:
    task: Task


@dataclass(frozen=True, slots=True)
class Fence:
    """A document was refused; the next hello says whom this agent obeys."""

    reason: str


CoreCommand = Kill | Terminate | SaveFences | Start | Forget | Begin | Fence

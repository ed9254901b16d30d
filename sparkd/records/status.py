"""The status document: `sparkd status -o json` and `GET /v1/status` (design §11)."""

from dataclasses import dataclass, field
from typing import Literal

from sparkd.records.memory import Memory, Pressure
from sparkd.records.verdict import Verdict

Phase = Literal[
    "pending",
    "preflight",
    "launching",
    "loading",
    "warming",
    "ready",
    "recovering",
    "stopping",
    "stopped",
    "failed",
]
NodeState = Literal["alive", "suspect", "silent", "lost", "unknown"]


@dataclass(frozen=True, slots=True)
class WaitingFor:
    """What an unfinished phase waits for, and what happens if it does not come. Moments are wall clock."""

    what: str
    since: str
    then: str
    rank: int | None = None
    node: str | None = None
    last_progress: str | None = None
    deadline: str | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    base_url: str
    models: tuple[str, ...]
    key_file: str | None = None


@dataclass(frozen=True, slots=True)
class ExitStatus:
    code: int | None
    signal: int | None
    how: str


@dataclass(frozen=True, slots=True)
class Progress:
    percent: float | None
    detail: str
    read_bytes: int
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class RankStatus:
    rank: int
    node: str
    node_address: str
    phase: str
    since: str | None
    pid: int | None
    progress: Progress
    exit: ExitStatus | None = None


@dataclass(frozen=True, slots=True)
class FallStatus:
    """The last fall as it is told to people: the first failing rank, and what it said."""

    generation: int
    rank: int
    node: str
    reason: str
    at: str
    exit: ExitStatus | None = None
    lines: tuple[str, ...] = ()
    """The most telling ones of its log, oldest first."""
    cause: str | None = None
    """A verdict's id."""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class DeploymentStatus:
    name: str
    profile: str
    intent: str
    """Digest of the intent."""
    desired: str
    phase: Phase
    reason: str
    generation: int
    falls: int
    since: str
    conditions: tuple[str, ...] = ()
    waiting_for: WaitingFor | None = None
    endpoint: Endpoint | None = None
    admit: bool = True
    proof_age_s: float | None = None
    proof_bound_s: float | None = None
    ranks: tuple[RankStatus, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    left_on: tuple[str, ...] = ()
    last_fall: FallStatus | None = None


@dataclass(frozen=True, slots=True)
class NodeStatus:
    id: str
    name: str
    state: NodeState
    addresses: tuple[str, ...]
    memory: Memory | None = None
    pressure: Pressure = field(default_factory=Pressure)
    gpu: dict[str, float] = field(default_factory=dict)
    verdicts: tuple[Verdict, ...] = ()
    drained: bool = False
    """It gets no new rank."""
    runtimes: tuple[str, ...] = ()
    """How it can run ranks, the best way first."""
    privileges: tuple[str, ...] = ()
    """`root`, and the capabilities that its agent has."""
    limits: tuple[str, ...] = ()
    """What its agent cannot do, each with the remedy."""


@dataclass(frozen=True, slots=True)
class Status:
    deployments: tuple[DeploymentStatus, ...]
    nodes: tuple[NodeStatus, ...]

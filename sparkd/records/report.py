"""What an agent tells: hello, report, and the answers it gets."""

from dataclasses import dataclass, field
from typing import Any, Literal

from sparkd.records.collective import CollectiveReport, Transport
from sparkd.records.document import DeploymentSerial, Revision
from sparkd.records.fabric import NodeFabric
from sparkd.records.memory import Memory, Pressure
from sparkd.records.rank import RankSpec
from sparkd.records.verdict import Verdict

RankState = Literal["starting", "running", "fallen", "stopping", "gone", "unkillable"]
RankPhase = Literal["launching", "rendezvous", "loading", "warming", "serving"]
RefusalCode = Literal["fenced", "spent", "engine", "ledger", "not-started"]
ExitSource = Literal["shim", "pidfd", "log", "unknown"]


@dataclass(frozen=True, slots=True)
class Exit:
    """How one process of a rank ended. `code` and `signal` are None when nobody knows (`how` unknown)."""

    rank: str
    process: str
    """`leader`, or the essential process's title (`VLLM::Worker_TP1`)."""
    pid: int
    code: int | None
    signal: int | None
    how: ExitSource
    at: float
    """Wall clock of the node."""
    mono: float
    """Monotonic clock of the node: comparable with the rank's log stamps."""


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What rank 0's agent learnt from the API. Ages are seconds at the moment of the report."""

    api_up: bool = False
    warmed: bool = False
    """All canaries and warm-ups of this generation were answered as expected."""
    detail: str = ""
    failed: str | None = None
    """A canary's wrong answer or final error; the gang cannot become ready."""
    proof_age_s: float | None = None
    """Since the last token that needed every rank; None before the first."""
    wedged: str | None = None
    """Why the engine counts as frozen; None while it does not."""
    moved_age_s: float | None = None
    """Since a counter of the engine moved: a completed step, which needs every rank as well."""


@dataclass(frozen=True, slots=True)
class RankReport:
    name: str
    state: RankState
    pid: int | None = None
    since: float = 0.0
    phase: RankPhase = "launching"
    detail: str = ""
    percent: float | None = None
    progress_age_s: float = 0.0
    rss_bytes: int = 0
    read_bytes: int = 0
    processes: int = 0
    exit: Exit | None = None
    fell: str | None = None
    """Why the rank counts as fallen, in plain words."""
    lines: tuple[str, ...] = ()
    """The most telling lines of a fallen rank, oldest first."""
    probe: ProbeReport | None = None
    ended: str | None = None
    """Why its agent was told, or decided, to end it."""
    remains: tuple[str, ...] = ()
    """What could not be removed, named (`pid 812 state D in nvidia_close`)."""
    stopped: tuple[str, ...] = ()
    """Its processes in state T, in words: rank 0's own agent sees those of its node only."""
    mods_missing: str | None = None
    """Why it may not serve: a required mod that a process with a loaded model did not apply."""
    transport: Transport | None = None
    """The way that NCCL took, by its own words; None while it has said nothing."""
    condemned: "Condemned | None" = None
    """Its node must be rid of it: the agent ends it, at the latest when the coordinator does not."""
    collective: CollectiveReport | None = None
    """Of a rank of kind `probe` only."""
    stopped_s: float | None = None
    """How long the first of `stopped` has been so; None if there is none."""
    stopped_each_s: tuple[float, ...] = ()
    """How long each of `stopped` has been so: an old one that nothing waits for must not hide a new one."""


@dataclass(frozen=True, slots=True)
class Condemned:
    """Why a node ends a rank for its memory: a verdict's id; the measured value, the floor and the phase."""

    cause: str
    reason: str


@dataclass(frozen=True, slots=True)
class Refusal:
    rank: str
    code: RefusalCode
    reason: str
    cause: str = ""
    """Id of the verdict that it comes down to, where the agent knows one: its Docker engine said why."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    id: str
    ok: bool
    result: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Lines of a followed rank's log as the shim wrote them; `offset` is where `text` begins."""

    rank: str
    offset: int
    text: str
    skipped_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """One second of one node. What cannot be read is None, never 0."""

    memory: Memory | None = None
    pressure: Pressure = field(default_factory=Pressure)
    gpu: dict[str, float] = field(default_factory=dict)
    """Of the first GPU, in the units of its names; bytes for memory. What is unknown is left out."""
    shed: str | None = None
    """Why the rank here should get no new requests; None while it may."""
    verdicts: tuple[Verdict, ...] = ()


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """Something the agent did of its own accord, with its reason."""

    kind: str
    reason: str
    at: float
    rank: str | None = None


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """One engine of the agent's own config. `command` is what `args` of a rank spec follow."""

    name: str
    command: tuple[str, ...]
    version: str | None = None
    flags: tuple[str, ...] | None = None
    """Those that it has, where that is known for certain: of an image. None: its version has to do."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a plan needs to know of a node."""

    id: str
    name: str
    address: str
    """Management address: where rank 0's API is reached."""
    fabric_address: str
    """Where ranks meet (`VLLM_HOST_IP`, the rendezvous)."""
    fabric_interface: str | None = None
    runtimes: tuple[str, ...] = ("process",)
    engines: tuple[EngineFacts, ...] = ()
    model_roots: tuple[str, ...] = ()
    rank_env: dict[str, str] = field(default_factory=dict)
    memory_total: int = 0
    privileges: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    """What this agent cannot do, each with its remedy."""
    local: bool = False
    """A member of a `--local` set: the API binds to loopback and needs no key."""
    files_folder: str = ""
    """Where this agent puts files of profiles, one folder for each content; empty if it cannot."""
    fabric: NodeFabric | None = None
    """As it was at the hello; None: this agent did not look."""
    images: tuple[str, ...] = ()
    """Names of images that could run here at the hello; a hint for people, a launch asks anew."""


@dataclass(frozen=True, slots=True)
class LedgerRank:
    """One row of the ledger, as a hello carries it."""

    spec: RankSpec
    state: Literal["intent", "started", "exited", "gone"]


@dataclass(frozen=True, slots=True)
class Caller:
    """In every request of an agent: who asks, in which life, and where in that life."""

    node: str
    boot: str
    run: str
    seq: int
    protocol: int = 1


@dataclass(frozen=True, slots=True)
class Hello:
    caller: Caller
    facts: NodeFacts
    version: str
    highest_term: int = 0
    highest_instance: str = ""
    holder: str = ""
    """The holder this agent obeys."""
    accepted: Revision = field(default_factory=lambda: Revision(0, 0))
    generations: dict[str, int] = field(default_factory=dict)
    """Highest generation of each deployment in the ledger."""
    ledger: tuple[LedgerRank, ...] = ()
    deployments: tuple[DeploymentSerial, ...] = ()
    ranks: tuple[RankReport, ...] = ()
    """What exists now."""
    wall: float = 0.0
    mono: float = 0.0
    lease_live: bool = False
    """The lease of the highest (term, instance) has not run out."""


@dataclass(frozen=True, slots=True)
class Welcome:
    term: int
    holder: str
    instance: str
    lease_s: float
    beat_s: float


@dataclass(frozen=True, slots=True)
class Report:
    caller: Caller
    wall: float
    mono: float
    applied: Revision
    refusals: tuple[Refusal, ...] = ()
    ranks: tuple[RankReport, ...] = ()
    sample: Sample | None = None
    events: tuple[AgentEvent, ...] = ()
    exits: tuple[Exit, ...] = ()
    logs: tuple[LogChunk, ...] = ()
    results: tuple[TaskResult, ...] = ()
    rtt_s: float | None = None
    """Round trip of the previous report, for the clock offset."""
    baseline_bytes: int | None = None
    """MemAvailable when last no rank existed on the node, in this boot; None when that is not known."""
    dropped: int = 0
    """Entries the bounded queue lost since the last acknowledged report."""
    kernel: tuple[str, ...] = ()
    """Telling lines of the kernel's log since the last report that was acknowledged."""
    tails: tuple[LogChunk, ...] = ()
    """What ranks wrote since then, unasked: of a node that freezes nothing can be asked later."""


@dataclass(frozen=True, slots=True)
class ReportAnswer:
    acked: int
    """The request's `seq`: everything in it that waits in the ledger may be forgotten. Else 0."""
    lease_s: float
    newest: Revision
    renew: bool = False
    """The certificate of this connection nears its end: ask for the next one."""
    serving: tuple[str, ...] = ()
    """Ranks of this node whose gang is ready: a follower's log does not say so."""


@dataclass(frozen=True, slots=True)
class CertificateAsked:
    """`csr`: a signing request (PEM) for the node's own key, which never leaves the node."""

    node: str
    csr: str


@dataclass(frozen=True, slots=True)
class CertificateGiven:
    certificate: str
    """PEM."""

"""One rank as a node is told to run it."""

from dataclasses import dataclass, field
from typing import Any, Literal

from sparkd.records.defaults import DEFAULTS
from sparkd.records.intent import Descriptor

RuntimeName = Literal["process", "systemd", "docker"]
RankKind = Literal["serve", "probe"]
"""`probe`: the collective probe in a rank's place; it serves nothing and is over within a minute."""


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Canary:
    """A completion with an expected answer. `messages` as in OpenAI's chat API."""

    messages: tuple[dict[str, Any], ...]
    max_tokens: int = 64
    contains: str | None = None
    """The answer must hold this text; None accepts any answer with at least one token."""
    timeout_s: float = 180.0


@dataclass(frozen=True, slots=True)
class Probe:
    """What rank 0's agent asks the API for: canaries and warm-ups once, pulses for as long as it serves."""

    api: Address
    model: str
    """The served name that requests carry."""
    canaries: tuple[Canary, ...] = ()
    warmup: tuple[Canary, ...] = ()
    pulse_silence_s: float = 15.0
    pulse_timeout_s: float = 20.0
    models: tuple[str, ...] = ()
    """Every name it serves under; `model` is the first of them."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """What a rank needs of its node, and when memory counts as returned after one has ended."""

    need_bytes: int = 0
    """Weights, runtime, load spike and reserve together; 0 when the profile does not say."""
    margin_bytes: int = DEFAULTS.memory_margin_bytes
    hold_s: float = DEFAULTS.memory_hold_s
    timeout_s: float = DEFAULTS.memory_timeout_s
    use_bytes: int = 0
    """What of the need the rank takes itself: without the node's reserve."""
    load_spike_bytes: int = 0
    """0 when the profile does not say."""
    floor_loading_bytes: int = DEFAULTS.memory_floor_bytes
    """MemAvailable that must be left until the gang is ready, and from then on."""
    floor_serving_bytes: int = DEFAULTS.memory_floor_bytes
    shm_bytes: int = 0
    """Bound of the `/dev/shm` of a container; 0: half of the node's memory, as for a unit of systemd."""


@dataclass(frozen=True, slots=True)
class PinnedImage:
    """`name` as it was asked for; `identity` says which content, the same on every node of the gang."""

    name: str
    identity: str


@dataclass(frozen=True, slots=True)
class RankSpec:
    """Everything an agent needs to start one rank, except the interpreter: that is the agent's own.

    `args` follow the engine's command (`serve MODEL …`), `env` is laid over the agent's allow-list and
    `[rank.env]`, `secrets` go into the environment too but never into a log, a ledger or an answer.
    """

    name: str
    deployment: str
    generation: int
    rank: int
    ranks: int
    runtime: RuntimeName
    engine: str
    args: tuple[str, ...]
    env: dict[str, str]
    rendezvous: Address
    descriptor: Descriptor
    probe: Probe | None = None
    """Rank 0 only."""
    weights_bytes: int = 0
    """Bytes this rank is expected to read while loading; 0 when unknown."""
    grace_s: float = 10.0
    boot_max_s: float = 7200.0
    log_cap_bytes: int = 128 << 20
    secrets: dict[str, str] = field(default_factory=dict)
    memory: MemoryNeed = field(default_factory=MemoryNeed)
    rdma: bool = False
    """It was given RDMA ports to reach the others: NCCL must not fall back to sockets."""
    image: PinnedImage | None = None
    """With the runtime `docker` only."""
    kind: RankKind = "serve"

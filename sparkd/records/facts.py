"""What an agent finds when it looks over its machine: answer to the task `facts`. What cannot be read is
None.

Nothing in it is a judgement; that is for the rules of the diagnosis.
"""

from dataclasses import dataclass, field

from sparkd.records.fabric import NodeFabric
from sparkd.records.memory import Memory


@dataclass(frozen=True, slots=True)
class EngineVersions:
    """One engine of the agent's configuration, read from its metadata on disk: it was not imported."""

    name: str
    python: str | None = None
    packages: dict[str, str] = field(default_factory=dict)
    """Versions by `vllm`, `torch`, `nccl`, `cuda`, and others that were found."""
    build: str = ""
    """Over the files of vLLM as they were installed: development builds share a version. Empty: not known."""


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """The file system of a folder that ranks or the agent write to or read from. Bytes."""

    use: str
    """`state`, `temporary` or `models`."""
    path: str
    free: int
    total: int


@dataclass(frozen=True, slots=True)
class StaleFile:
    """A file in shared memory that no process maps or holds."""

    path: str
    bytes: int


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """A process that computes with a GPU or belongs to an inference engine, and to no rank of this agent."""

    pid: int
    title: str
    parent: int = 0
    """1: whoever started it is gone."""
    rank: str | None = None
    """The rank of another agent that it says it is of."""
    container: str | None = None
    """First twelve digits of its container's id."""
    rss_bytes: int = 0
    gpu_bytes: int | None = None
    """None: it uses no GPU, or the driver does not say."""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Of a control group that ranks run in, or below which they do. Bytes."""

    group: str
    """Its path below the hierarchy: `/sparkd.slice/sparkd-ranks.slice`."""
    most: int
    used: int | None = None


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """One machine at one moment. Versions, limits and what takes up room; bytes and seconds."""

    wall: float
    """The machine's own clock."""
    hostname: str = ""
    hostname_addresses: tuple[str, ...] | None = None
    """What its own name resolves to; empty: to nothing; None: no answer in time."""
    mdns_name: str | None = None
    """What avahi announces this machine as, such as `spark1.local`; None: it does not run."""
    mdns_addresses: tuple[str, ...] | None = None
    """What that name resolves to here; None: no answer in time, or none was asked for."""
    agent: str = ""
    kernel: str = ""
    system: str = ""
    architecture: str = ""
    driver: str | None = None
    """Of NVIDIA's loaded kernel module."""
    driver_library: str | None = None
    """On disk; another one than the loaded until the next reboot."""
    firmware: dict[str, str] = field(default_factory=dict)
    """By part: `system`, and RDMA devices by name."""
    gpus: tuple[str, ...] | None = None
    """Names; None: no driver, or it does not answer."""
    engines: tuple[EngineVersions, ...] = ()
    mods: str = ""
    """Fingerprint of the mods that this agent brings along."""
    memlock_bytes: int | None = None
    """What a plain child of the agent may lock; None: any amount. systemd gives its units no limit."""
    open_files: int | None = None
    """How many files such a child may hold open; None: any number."""
    memory: Memory | None = None
    cma_total: int | None = None
    cma_free: int | None = None
    swap_total: int | None = None
    shm_total: int | None = None
    shm_free: int | None = None
    stale: tuple[StaleFile, ...] | None = None
    """None: this agent may not see what others map."""
    disks: tuple[DiskFacts, ...] = ()
    processes: tuple[ProcessFacts, ...] = ()
    fabric: NodeFabric | None = None
    """None: this agent does not look, it belongs to a local set."""
    desktop: str = ""
    """The kind of a graphical session that somebody has there, as logind says it: `wayland`, `x11`."""
    memory_limits: tuple[MemoryLimit, ...] = ()

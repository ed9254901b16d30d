"""What a node said of itself before anything was changed (`onnode.probe`)."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from sparkd.enrol.wheels import Kind
from sparkd.errors import EnrolmentFailed


@dataclass(frozen=True, slots=True)
class FoundAgent:
    """What an earlier enrolment left; None where there is nothing."""

    current: str | None = None
    """The folder that `current` points to."""
    folders: tuple[str, ...] = ()
    """Those that are whole."""
    node_id: str | None = None
    config: dict[str, Any] | None = None
    """Empty for a file that cannot be read as TOML."""
    key: bool = False
    certificate: str | None = None
    authority: str | None = None
    unit: str | None = None
    active: bool = False
    enabled: bool = False

    @property
    def holder(self) -> str | None:
        """The coordinator that this node obeys."""
        return self._coordinator.get("holder")

    @property
    def urls(self) -> tuple[str, ...]:
        """Where that one is."""
        return tuple(self._coordinator.get("urls", ()))

    @property
    def _coordinator(self) -> dict[str, Any]:
        section = (self.config or {}).get("coordinator")
        return section if isinstance(section, dict) else {}


@dataclass(frozen=True, slots=True)
class FoundFabric:
    interface: str
    rdma: str
    up: bool = False
    mtu: int | None = None
    speed_mbit: int | None = None
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FoundContainer:
    name: str
    image: str


@dataclass(frozen=True, slots=True)
class FoundEngine:
    python: str
    version: str
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Probe:
    hostname: str
    system: str
    distribution: str
    kernel: str
    machine: str
    libc: tuple[str, str]
    python: tuple[int, int, int]
    python_path: str
    free_bytes: int
    boot: str = ""
    """Boot id: two targets with the same one are the same machine."""
    missing_modules: tuple[str, ...] = ()
    has_systemd: bool = True
    has_openssl: bool = True
    is_root: bool = True
    address: str | None = None
    """Its own, on the way to the coordinator."""
    unreachable: tuple[str, ...] = ()
    """Addresses of the coordinator that it cannot connect to, with the reason."""
    agent: FoundAgent = field(default_factory=FoundAgent)
    fabric: tuple[FoundFabric, ...] = ()
    gpu: tuple[str, ...] = ()
    gpu_owners: tuple[str, ...] = ()
    containers: tuple[FoundContainer, ...] = ()
    images: tuple[str, ...] = ()
    model_roots: tuple[str, ...] = ()
    engines: tuple[FoundEngine, ...] = ()

    @property
    def kind(self) -> Kind:
        """For choosing wheels. A libc that is not glibc has version 0.0: nothing binary fits it."""
        name, version = self.libc
        parts = version.split(".") if name == "glibc" else []
        libc = (int(parts[0]), int(parts[1])) if len(parts) > 1 else (0, 0)
        return Kind((self.python[0], self.python[1]), self.machine, libc)

    @property
    def link(self) -> FoundFabric | None:
        """Where ranks would meet: the first RDMA device that is up and has an address."""
        return next((one for one in self.fabric if one.up and one.addresses), None)


def read_probe(who: str, answer: dict[str, Any]) -> Probe:
    """Raises EnrolmentFailed for what is no probe."""
    try:
        return msgspec.convert(answer, Probe)
    except msgspec.ValidationError as error:
        raise EnrolmentFailed(f"{who}: its answer cannot be understood: {error}") from error

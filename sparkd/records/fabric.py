"""What a node's network is made of, as its kernel shows it. What cannot be read is None, never 0.

Nothing in it is a judgement: what ranks use of it is chosen in `sparkd.fabric`.
"""

from dataclasses import dataclass, field
from typing import Final

from sparkd.records.collective import CollectiveTest
from sparkd.records.verdict import Verdict

ROCE_V1: Final = "IB/RoCE v1"
ROCE_V2: Final = "RoCE v2"
"""As sysfs names the type of an entry."""


@dataclass(frozen=True, slots=True)
class Gid:
    """One entry of an RDMA port's table that is not empty."""

    index: int
    address: str
    """`192.168.100.10` for an IPv4 entry, else IPv6."""
    type: str | None = None
    """`RoCE v2` or `IB/RoCE v1`."""
    netdev: str | None = None


@dataclass(frozen=True, slots=True)
class RdmaPort:
    device: str
    """`rocep1s0f0`."""
    port: int = 1
    state: str | None = None
    """`ACTIVE`, `DOWN`, …"""
    link_layer: str | None = None
    """`Ethernet` or `InfiniBand`."""
    rate_gbit: float | None = None
    gids: tuple[Gid, ...] = ()

    @property
    def active(self) -> bool:
        return self.state == "ACTIVE"


@dataclass(frozen=True, slots=True)
class Interface:
    """One network interface (netdev) with the RDMA ports of its device."""

    name: str
    kind: str = "ethernet"
    """`ethernet`, `wireless`, `loopback`, `bridge`, `virtual` (no device behind it), or `other`."""
    up: bool = False
    """It can carry packets now."""
    carrier: bool | None = None
    mtu: int | None = None
    speed_mbit: int | None = None
    mac: str | None = None
    addresses: tuple[str, ...] = ()
    """With the length of the prefix: `192.168.100.10/24`."""
    pci: str | None = None
    """`0002:01:00.0`."""
    pcie_gts: float | None = None
    pcie_gts_most: float | None = None
    """What both the card and its slot can do, in GT/s a lane."""
    pcie_lanes: int | None = None
    pcie_lanes_most: int | None = None
    rdma: tuple[RdmaPort, ...] = ()


@dataclass(frozen=True, slots=True)
class Route:
    """Packets to this network leave through this interface."""

    network: str
    """`192.168.100.0/24`, `0.0.0.0/0`, `fd00::/64`."""
    interface: str
    gateway: str | None = None
    metric: int = 0


@dataclass(frozen=True, slots=True)
class NcclSetting:
    """A variable in a file that NCCL reads by itself; the environment wins over it."""

    name: str
    value: str
    file: str


@dataclass(frozen=True, slots=True)
class NodeFabric:
    """All of one node's network at one moment."""

    interfaces: tuple[Interface, ...] = ()
    """In the order of their names. None at all: there is no sysfs, or no list of addresses, to read."""
    routes: tuple[Route, ...] = ()
    hotplug_off: bool | None = None
    """A Spark's firmware has powered the card off as no cable was in it; None: no such firmware."""
    nccl: tuple[NcclSetting, ...] = ()
    """Each variable once: the file of the ranks' user wins over the machine's."""

    @property
    def readable(self) -> bool:
        return bool(self.interfaces)

    def interface(self, name: str) -> Interface | None:
        return next((one for one in self.interfaces if one.name == name), None)


@dataclass(frozen=True, slots=True)
class FabricSeat:
    """One node as a gang of all that were asked for would use it. `fabric` is None where nothing is known."""

    node: str
    name: str
    address: str
    interface: str | None = None
    hcas: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    """What a rank there would get."""
    fabric: NodeFabric | None = None


@dataclass(frozen=True, slots=True)
class FabricView:
    """What a gang on these nodes would use, and what speaks against it."""

    topology: str
    network: str | None
    reason: str
    seats: tuple[FabricSeat, ...]
    verdicts: tuple[Verdict, ...] = ()


@dataclass(frozen=True, slots=True)
class Reached:
    """What one node found when it called another one. Seconds; sizes in bytes, headers included."""

    host: str
    tcp: str | None = None
    """Why there was no connection to an ephemeral port; None: there was one."""
    rtt_s: float | None = None
    """The shortest of some exchanges over that connection."""
    udp: bool = False
    """A small datagram was answered."""
    mtu: int | None = None
    """The largest packet of those tried that arrived in one piece; None: none did, or none was tried."""
    neighbour: bool | None = None
    """The other end answered on the link itself (ARP); None: not known."""


@dataclass(frozen=True, slots=True)
class Call:
    """One direction of one pair of nodes, by their names."""

    source: str
    target: str
    reached: Reached | None = None
    """None: the calling node did not answer, or the other one could not listen."""
    heard: bool | None = None
    """The other end received something from here; None: not known."""
    wanted_mtu: int | None = None


@dataclass(frozen=True, slots=True)
class FabricTest:
    view: FabricView
    calls: tuple[Call, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    collectives: tuple[CollectiveTest, ...] = ()
    """Of all nodes together, then of each pair; none where nodes do not reach each other."""

"""The choice: for each member of a gang where it meets the others, over which cards, and why."""

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from sparkd.fabric.gids import nccls_own, wanted
from sparkd.fabric.member import Member
from sparkd.fabric.networks import Common, Port, common_networks, strays

Topology = Literal["alone", "pair", "switch", "ring", "sockets", "unseen"]
"""`sockets`: no RDMA that leads to all; `unseen`: some node does not show its network."""


@dataclass(frozen=True, slots=True)
class Hca:
    """One RDMA port that a rank uses."""

    device: str
    interface: str
    address: str
    gid_index: int
    gid_own: int | None
    """What NCCL would take by itself."""
    port: int = 1


@dataclass(frozen=True, slots=True)
class Seat:
    """Where one member meets the others. `node` says that its own configuration decided."""

    member: Member
    address: str
    interface: str | None = None
    hcas: tuple[Hca, ...] = ()
    gid_index: int | None = None
    """None: NCCL finds the right one for each port by itself."""
    lost: tuple[Hca, ...] = ()
    """Left out, because one index for all ports of a process would be wrong for these."""
    mtu: int | None = None
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    topology: Topology
    network: str | None
    seats: tuple[Seat, ...]
    reason: str
    stray: tuple[str, ...] = ()
    """Better networks that were passed over, each with the reason."""

    @property
    def is_rdma(self) -> bool:
        return self.topology in ("pair", "switch", "ring") and all(seat.hcas for seat in self.seats)

    @property
    def version(self) -> int:
        """4 or 6: the family of the addresses at which ranks meet."""
        return 6 if any(":" in seat.address for seat in self.seats) else 4


def choose(members: Sequence[Member]) -> Choice:
    """What a launch on these nodes would use now, in the order of the ranks."""
    if len(members) == 1:
        return Choice("alone", None, (_alone(members[0]),), "one rank meets nobody")
    unseen = [member.name for member in members if not member.fabric.readable]
    if unseen:
        reason = f"{', '.join(unseen)} does not show its network: what is configured there is taken"
        return Choice("unseen", None, tuple(_configured(member) for member in members), reason)
    networks, stray = _straight(members)
    fast = [network for network in networks if network.is_rdma]
    ring = not fast and _is_ring(members)
    meeting = networks[0] if networks else None
    seats = tuple(_seat(at, member, meeting) for at, member in enumerate(members))
    if fast:
        seats = tuple(_with_hcas(at, seat, fast) for at, seat in enumerate(seats))
    elif ring:
        seats = tuple(_ring_hcas(seat, members) for seat in seats)
    topology: Topology = "ring" if ring else "sockets"
    if fast:
        topology = "pair" if len(members) == 2 else "switch"
    network = str(meeting.network) if meeting else None
    return Choice(topology, network, seats, _reason(topology, meeting), stray)


def _alone(member: Member) -> Seat:
    seat = _configured(member)
    found = _interface_of(member, seat.address)
    if found is None and seat.pinned and member.fabric.readable:
        # Nobody has to be met there, and an address that is away keeps no rank from its work.
        seat = Seat(member, member.management)
        found = _interface_of(member, seat.address)
    return replace(seat, interface=found.interface.name) if found else seat


def _configured(member: Member) -> Seat:
    address = member.pinned_address or member.management
    return Seat(member, address, member.pinned_interface, pinned=member.pinned_address is not None)


def _straight(members: Sequence[Member]) -> tuple[list[Common], tuple[str, ...]]:
    """Networks whose packets stay inside, and why others were passed over."""
    good, passed_over = [], []
    for network in common_networks(members):
        bad = strays(network, members)
        if bad:
            here, there, way = bad[0]
            passed_over.append(
                f"{network.network}: {here.name} would send to {there.name} by {way}, outside this network"
            )
        else:
            good.append(network)
    return good, tuple(passed_over)


def _reason(topology: Topology, meeting: Common | None) -> str:
    if meeting is None:
        return "these nodes have no network in common"
    if topology == "ring":
        return f"a ring: no cable leads to all, so ranks meet on {meeting.network} and send by their cards"
    if topology == "sockets":
        return f"the best network that all nodes are in is {meeting.network}; no RDMA leads to all of them"
    return f"the fastest network that all nodes are in is {meeting.network}, with RDMA"


def _seat(at: int, member: Member, meeting: Common | None) -> Seat:
    """The node's own word counts; `pins.py` has verified it or will say what is wrong with it."""
    if member.pinned_address is not None:
        found = _interface_of(member, member.pinned_address)
        name = found.interface.name if found else member.pinned_interface
        return Seat(
            member,
            member.pinned_address,
            name,
            mtu=found.interface.mtu if found else None,
            pinned=True,
        )
    if meeting is None:
        return _configured(member)
    port = next(
        (port for port in meeting.ports[at] if port.interface.name == member.pinned_interface),
        meeting.ports[at][0],
    )
    return Seat(member, str(port.address), port.interface.name, mtu=port.interface.mtu)


def _interface_of(member: Member, address: str) -> Port | None:
    for interface in member.fabric.interfaces:
        for text in interface.addresses:
            found = ipaddress.ip_interface(text).ip
            if str(found) == address:
                return Port(interface, found)
    return None


def _with_hcas(at: int, seat: Seat, fast: Sequence[Common]) -> Seat:
    family = 6 if ":" in seat.address else 4
    ports = [port for network in fast if network.network.version == family for port in network.ports[at]]
    return _settled(seat, tuple(_hcas(ports, family)))


def _ring_hcas(seat: Seat, members: Sequence[Member]) -> Seat:
    """Every port that leads to some other member."""
    ports = [
        port
        for other in members
        if other is not seat.member
        for network in common_networks((seat.member, other))
        if network.is_rdma and network.network.version == 4
        for port in network.ports[0]
    ]
    return _settled(seat, tuple(_hcas(ports, 4)))


def _hcas(ports: Sequence[Port], family: int) -> Iterator[Hca]:
    seen: set[tuple[str, int]] = set()
    for port in ports:
        for rdma in port.interface.rdma:
            if not rdma.active or rdma.link_layer != "Ethernet" or (rdma.device, rdma.port) in seen:
                continue
            index = wanted(rdma, port.interface.name, port.address)
            if index is not None:
                seen.add((rdma.device, rdma.port))
                own = nccls_own(rdma, family)
                yield Hca(rdma.device, port.interface.name, str(port.address), index, own, rdma.port)


def _settled(seat: Seat, hcas: tuple[Hca, ...]) -> Seat:
    """One process has one NCCL_IB_GID_INDEX: set only where NCCL would go wrong by itself."""
    if all(hca.gid_index == hca.gid_own for hca in hcas):
        return replace(seat, hcas=hcas)
    index = hcas[0].gid_index
    return replace(
        seat,
        hcas=tuple(hca for hca in hcas if hca.gid_index == index),
        gid_index=index,
        lost=tuple(hca for hca in hcas if hca.gid_index != index),
    )


def _is_ring(members: Sequence[Member]) -> bool:
    """No network leads to all, but three or more nodes have cables to two others each."""
    if len(members) < 3:
        return False
    neighbours = {member.id: 0 for member in members}
    for here, there in combinations(members, 2):
        if any(network.is_rdma for network in common_networks((here, there))):
            neighbours[here.id] += 1
            neighbours[there.id] += 1
    return all(count >= 2 for count in neighbours.values())


def variables(choice: Choice, seat: Seat) -> Iterator[tuple[str, str, str]]:
    """Name, value and the reason, in the order in which they are shown."""
    yield "VLLM_HOST_IP", seat.address, "where the others reach it"
    if seat.interface:
        yield "GLOO_SOCKET_IFNAME", seat.interface, "that address is on it"
        # NCCL takes a bare name as the beginning of one.
        yield "NCCL_SOCKET_IFNAME", f"={seat.interface}", "that address is on it"
    if choice.version == 6:
        yield "NCCL_SOCKET_FAMILY", "AF_INET6", "ranks meet over IPv6"
    if choice.is_rdma:
        names = ",".join(hca.device if hca.port == 1 else f"{hca.device}:{hca.port}" for hca in seat.hcas)
        yield "NCCL_IB_HCA", f"={names}", ", ".join(f"{hca.interface} {hca.address}" for hca in seat.hcas)
        yield from _gid_variables(choice, seat)
        # Its transport is read back from these lines.
        yield "NCCL_DEBUG", "INFO", "it says which transport it took"
        yield "NCCL_DEBUG_SUBSYS", "INIT,NET", "no more than that"
    elif choice.topology == "sockets" and any(_has_rdma(one.member) for one in choice.seats):
        yield "NCCL_IB_DISABLE", "1", "no RDMA leads to all nodes"
    if choice.topology == "ring" and choice.is_rdma:
        yield "NCCL_IB_MERGE_NICS", "0", "ring: two cables are two ways"
        yield "NCCL_CROSS_NIC", "1", "ring: a cable may join unlike ports"
        yield "NCCL_IB_SUBNET_AWARE_ROUTING", "1", "ring: each cable is a network of its own"
        yield "NCCL_NET_PLUGIN", "none", "ring: NCCL's own transport, no plug-in"


def _gid_variables(choice: Choice, seat: Seat) -> Iterator[tuple[str, str, str]]:
    if seat.gid_index is not None:
        yield "NCCL_IB_GID_INDEX", str(seat.gid_index), f"the RoCE v2 entry of {seat.hcas[0].address}"
    if choice.version == 6:
        yield "NCCL_IB_ADDR_FAMILY", "AF_INET6", "ranks meet over IPv6"


def _has_rdma(member: Member) -> bool:
    return any(interface.rdma for interface in member.fabric.interfaces)

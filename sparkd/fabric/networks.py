"""IP networks that all nodes of a gang are in, and whether packets between them stay inside."""

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sparkd.fabric.member import Member
from sparkd.records.fabric import Interface, NodeFabric

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NEVER: Final = frozenset({"loopback", "other", "infiniband"})


@dataclass(frozen=True, slots=True)
class Port:
    """One interface of a node in a network, with its address there."""

    interface: Interface
    address: Address

    @property
    def is_rdma(self) -> bool:
        return any(port.active and port.link_layer == "Ethernet" for port in self.interface.rdma)


@dataclass(frozen=True, slots=True)
class Common:
    """A network that all members are in: for each, in their order, its ports there, the best one first."""

    network: Network
    ports: tuple[tuple[Port, ...], ...]

    @property
    def is_rdma(self) -> bool:
        return all(any(port.is_rdma for port in ports) for ports in self.ports)

    @property
    def speed_mbit(self) -> int:
        """Of the slowest member; 0 where a kernel does not say."""
        return min(ports[0].interface.speed_mbit or 0 for ports in self.ports)


def common_networks(members: Sequence[Member]) -> list[Common]:
    """The better one first: RDMA, faster, not by radio, IPv4, the one by which people know the nodes.

    Networks in which two members have the same address are none: every machine's docker0 is 172.17.0.1.
    """
    by_member = [dict(_networks(member.fabric)) for member in members]
    shared = set(by_member[0]).intersection(*by_member[1:]) if by_member else set()
    found = [Common(network, tuple(networks[network] for networks in by_member)) for network in shared]
    managed = {text for member in members if (text := _plain(member.management))}
    return sorted((one for one in found if _distinct(one)), key=lambda one: _order(one, managed))


def _order(common: Common, managed: set[str]) -> tuple[object, ...]:
    ports = [ports[0] for ports in common.ports]
    return (
        not common.is_rdma,
        any(port.interface.kind == "wireless" for port in ports),
        # As few bits as tell 100 from 200 Gb/s: a virtual device's speed is nobody's.
        -common.speed_mbit,
        common.network.version,
        not any(str(port.address) in managed for port in ports),
        ports[0].interface.pci or "~",
        int(common.network.network_address),
    )


def _networks(fabric: NodeFabric) -> Iterator[tuple[Network, tuple[Port, ...]]]:
    found: dict[Network, list[Port]] = {}
    for interface in fabric.interfaces:
        if not interface.up or interface.kind in _NEVER:
            continue
        for text in interface.addresses:
            address = ipaddress.ip_interface(text)
            # Without its scope an IPv6 link-local address leads nowhere.
            if address.ip.is_loopback or (address.version == 6 and address.ip.is_link_local):
                continue
            found.setdefault(address.network, []).append(Port(interface, address.ip))
    for network, ports in found.items():
        yield network, tuple(sorted(ports, key=lambda port: (not port.is_rdma, port.interface.pci or "~")))


def _distinct(common: Common) -> bool:
    addresses = [ports[0].address for ports in common.ports]
    return len(set(addresses)) == len(addresses)


def _plain(text: str) -> str | None:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None


def way_to(fabric: NodeFabric, address: Address) -> str | None:
    """The interface by which a node sends to this address; None if it has no route, or shows none."""
    best: tuple[int, int, str] | None = None
    for route in fabric.routes:
        network = ipaddress.ip_network(route.network)
        if network.version == address.version and address in network:
            found = (-network.prefixlen, route.metric, route.interface)
            best = found if best is None or found[:2] < best[:2] else best
    return best[2] if best else None


def strays(common: Common, members: Sequence[Member]) -> list[tuple[Member, Member, str]]:
    """(from, to, interface): packets inside this network that a node would send by some other interface."""
    found = []
    for here, ports in zip(members, common.ports, strict=True):
        inside = {port.interface.name for port in ports}
        for there, theirs in zip(members, common.ports, strict=True):
            way = way_to(here.fabric, theirs[0].address) if here is not there else None
            if way is not None and way not in inside:
                found.append((here, there, way))
    return found

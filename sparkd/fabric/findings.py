"""What speaks against a choice, by what the nodes show of their networks. Each finding says what to do."""

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final

from sparkd.fabric.cards import PORT_MBIT, is_narrow, other_half
from sparkd.fabric.choice import Choice, Seat
from sparkd.fabric.member import Member
from sparkd.records.fabric import Interface
from sparkd.records.verdict import Severity, Verdict

_RING_MOST: Final = 3
"""NVIDIA supports a ring of three; in a larger one most pairs of nodes have no cable between them."""
_RING_NCCL: Final = (2, 30)
"""The first NCCL with NCCL_IB_SUBNET_AWARE_ROUTING."""


def findings(choice: Choice, nccl: Mapping[str, str] | None = None) -> Iterator[Verdict]:
    """`nccl`: the version by node id, where it is known."""
    if choice.topology == "alone":
        return
    if choice.topology == "unseen":
        yield from _unreadable(choice)
        return
    if choice.network is None and not all(seat.pinned for seat in choice.seats):
        yield _no_network(choice)
    if choice.topology == "sockets":
        yield from _absent(choice)
    if choice.topology == "ring":
        yield from _ring(choice, nccl or {})
    if choice.topology in ("pair", "switch", "ring"):
        yield from _no_entries(choice)
    yield from _mtu(choice)
    yield from _speeds(choice)
    for seat in choice.seats:
        yield from _of_seat(seat)
    yield from (
        Verdict("ROUTE_STRAY", Severity.WARN, "a network was passed over", evidence=words, remedy=_ROUTE)
        for words in choice.stray
    )


_ROUTE: Final = "`ip route get ADDRESS` shows the way; take the other route or the doubled network away"


def _unreadable(choice: Choice) -> Iterator[Verdict]:
    blind = [seat.member for seat in choice.seats if seat.member.looked and not seat.member.fabric.readable]
    for member in blind:
        yield Verdict(
            "FABRIC_UNREADABLE",
            Severity.WARN,
            "the node's network cannot be seen, so nothing of it is verified",
            evidence=f"/sys/class/net or the kernel's list of addresses cannot be read on {member.name}",
            cause="the agent runs in a container without the host's sysfs",
            remedy="run the agent on the host, or mount /sys into its container",
            node=member.id,
        )


def _no_network(choice: Choice) -> Verdict:
    has = "; ".join(
        f"{seat.member.name}: {', '.join(_networks_of(seat.member)) or 'no address at all'}"
        for seat in choice.seats
    )
    return Verdict(
        "NO_COMMON_NETWORK",
        Severity.BLOCK,
        "there is no network that all nodes of this gang are in",
        evidence=has + _prefixes(choice),
        remedy="give each node an address in one network, or choose other nodes (--nodes)",
    )


def _networks_of(member: Member) -> list[str]:
    found = {
        str(ipaddress.ip_interface(text).network)
        for one in member.fabric.interfaces
        if one.up and one.kind != "loopback"
        for text in one.addresses
    }
    return sorted(found)


def _absent(choice: Choice) -> Iterator[Verdict]:
    """Without RDMA everywhere a machine is none for it; with it somewhere, its lack is a fault."""
    states = {seat.member.name: _state_of(seat.member) for seat in choice.seats}
    if not any(seat.member.fabric.hotplug_off is not None for seat in choice.seats) and not any(
        interface.rdma for seat in choice.seats for interface in seat.member.fabric.interfaces
    ):
        return
    off = any(seat.member.fabric.hotplug_off for seat in choice.seats)
    remedy = "see to the cables, and to an address for each half of the cabled ports"
    if off:
        remedy = "put the cable in: the firmware switches a card without one off (dgx-spark-mlnx-hotplug)"
    yield Verdict(
        "FABRIC_ABSENT",
        Severity.BLOCK,
        "no RDMA leads to all nodes: NCCL would fall back to sockets, many times slower",
        evidence="; ".join(f"{name}: {state}" for name, state in states.items()) + _prefixes(choice),
        cause="an empty list of RDMA devices means no cable or a card switched off, not that there is none",
        remedy=f"{remedy}; `--force FABRIC_ABSENT` starts over sockets all the same",
    )


def unmet(choice: Choice, without: Sequence[str]) -> Verdict:
    """Of a profile that requires RDMA. `without`: names of nodes whose own variables keep NCCL from it."""
    states = (f"{seat.member.name}: {_state_of(seat.member)}" for seat in choice.seats)
    remedy = "see to the cables, or leave `fabric.rdma: required` out of the profile"
    if without:
        names = ", ".join(without)
        remedy = f"take NCCL_IB_DISABLE and NCCL_NET out of the profile, and of [rank.env] on {names}"
    return Verdict(
        "FABRIC_ABSENT",
        Severity.BLOCK,
        "the profile requires RDMA, and NCCL would go over sockets",
        evidence=f"NCCL is kept from RDMA on {', '.join(without)}" if without else "; ".join(states),
        remedy=remedy,
    )


def _state_of(member: Member) -> str:
    if member.fabric.hotplug_off:
        return "its firmware has switched the network card off"
    cards = [one for one in member.fabric.interfaces if one.rdma]
    if not cards:
        return "no RDMA device"
    return ", ".join(
        f"{one.name} {'has no carrier' if not one.up else ' '.join(one.addresses) or 'has no address'}"
        for one in cards
    )


def _no_entries(choice: Choice) -> Iterator[Verdict]:
    """Cards are up on all nodes, but one has no way to send from the address where the others look for it."""
    for seat in choice.seats:
        if not seat.hcas:
            yield Verdict(
                "FABRIC_ABSENT",
                Severity.BLOCK,
                "no RDMA port of this node can be used: NCCL would fall back to sockets, many times slower",
                evidence=f"{seat.member.name}: {_state_of(seat.member)}; none of these ports has a RoCE v2 "
                f"entry for its IPv{6 if ':' in seat.address else 4} address where the others look for it",
                cause="the kernel makes these entries of an interface's addresses, and has not made this one",
                remedy="set the interface down and up again, then `show_gids`; give it an IPv4 address if it "
                "has none; `--force FABRIC_ABSENT` starts over sockets all the same",
                node=seat.member.id,
            )


def _prefixes(choice: Choice) -> str:
    """Addresses of two nodes that would be in one network if their prefixes were as long as each other."""
    placed = [
        (seat.member, one, ipaddress.ip_interface(text))
        for seat in choice.seats
        for one in seat.member.fabric.interfaces
        if one.up and one.kind not in ("loopback", "bridge")
        for text in one.addresses
    ]
    found = [
        f"{a} on {one.name} of {here.name}, {b} on {two.name} of {there.name}"
        for (here, one, a), (there, two, b) in combinations(placed, 2)
        if here is not there and a.network != b.network and a.ip in b.network and b.ip in a.network
    ]
    return f"; the lengths of the prefixes differ: {', '.join(found)}" if found else ""


def _ring(choice: Choice, nccl: Mapping[str, str]) -> Iterator[Verdict]:
    if len(choice.seats) > _RING_MOST:
        yield Verdict(
            "RING_TOO_LARGE",
            Severity.BLOCK,
            f"{len(choice.seats)} nodes in a ring: most pairs of them have no cable between them",
            evidence=choice.reason,
            remedy="connect them by a switch, or use three of them (--nodes)",
        )
    for seat in choice.seats:
        version = nccl.get(seat.member.id)
        known = _release(version)
        if known is None or known >= _RING_NCCL:
            continue
        yield Verdict(
            "RING_NCCL",
            Severity.BLOCK,
            "this NCCL cannot tell the cables of a ring apart",
            evidence=f"NCCL {version} on {seat.member.name}",
            cause="before 2.30 channels land on a port that leads to the other neighbour (ibv_modify_qp 110)",
            remedy="install NCCL 2.30 or later (nvidia-nccl-cu13), or NVIDIA's branch dgxspark-3node-ring",
            node=seat.member.id,
        )


def _release(version: str | None) -> tuple[int, int] | None:
    words = (version or "").split(".")
    return (int(words[0]), int(words[1])) if len(words) > 1 and all(w.isdigit() for w in words[:2]) else None


def _mtu(choice: Choice) -> Iterator[Verdict]:
    """Of all that is used in one network: a card's other half is a link of its own."""
    ends: dict[str, list[tuple[Member, Interface]]] = {}
    for seat in choice.seats:
        for one in seat.member.fabric.interfaces:
            if one.mtu is not None and (one.name == seat.interface or one in _used(seat)):
                for network in {str(ipaddress.ip_interface(text).network) for text in one.addresses}:
                    ends.setdefault(network, []).append((seat.member, one))
    for network, found in sorted(ends.items()):
        sizes = {one.mtu for _, one in found}
        if len(sizes) > 1 and not network.startswith("fe80:"):
            # TCP makes its segments small enough for both ends; RDMA does not.
            yield _mtu_mismatch(network, found, Severity.BLOCK if choice.is_rdma else Severity.WARN)


def _mtu_mismatch(network: str, ends: Sequence[tuple[Member, Interface]], severity: Severity) -> Verdict:
    most = max(one.mtu or 0 for _, one in ends)
    odd = [(member, one) for member, one in ends if one.mtu != most]
    commands = [f"on {member.name} `sudo ip link set dev {one.name} mtu {most}`" for member, one in odd]
    return Verdict(
        "MTU_MISMATCH",
        severity,
        f"the MTU is not the same on all ends of {network}",
        evidence=", ".join(f"{one.mtu} on {one.name} of {member.name}" for member, one in ends),
        cause="small messages pass, the first large one does not: IBV_WC_RETRY_EXC_ERR(12), or a hang",
        remedy=f"{' and '.join(commands)}; in netplan as well so that it stays, and on the switch",
        node=odd[0][0].id if len({member.id for member, _ in odd}) == 1 else None,
    )


def _speeds(choice: Choice) -> Iterator[Verdict]:
    if not choice.is_rdma:
        return
    slow = [
        (seat.member, one)
        for seat in choice.seats
        for one in _used(seat)
        if one.speed_mbit is not None and one.speed_mbit < _expected(choice, seat, one)
    ]
    if slow:
        yield Verdict(
            "LINK_SLOW",
            Severity.WARN,
            "a link is slower than it could be",
            evidence=", ".join(
                f"{one.name} of {member.name}: {(one.speed_mbit or 0) // 1000} Gb/s" for member, one in slow
            ),
            cause="a switch that negotiates may settle at 100 Gb/s; the slowest link sets the pace of all",
            remedy="set the port's speed on the switch (200G-baseCR4), do not negotiate; see to the cable",
            node=slow[0][0].id if len({member.id for member, _ in slow}) == 1 else None,
        )


def _expected(choice: Choice, seat: Seat, interface: Interface) -> int:
    """As fast as the fastest here; and what a Spark's port can do."""
    fastest = max(one.speed_mbit or 0 for each in choice.seats for one in _used(each))
    return max(fastest, PORT_MBIT if other_half(seat.member.fabric, interface) else 0)


def _used(seat: Seat) -> list[Interface]:
    names = {hca.interface for hca in seat.hcas}
    return [one for one in seat.member.fabric.interfaces if one.name in names]


def _of_seat(seat: Seat) -> Iterator[Verdict]:
    fabric, node = seat.member.fabric, seat.member.id
    used = {hca.interface for hca in seat.hcas}
    for one in _used(seat):
        half = other_half(fabric, one)
        if half is not None and half.up and half.name not in used and not _ipv4(half):
            yield Verdict(
                "FABRIC_HALF",
                Severity.WARN,
                "only one half of the port is used: at most half its speed",
                evidence=f"{seat.member.name}: {one.name} has {one.addresses[0]}, {half.name} no address",
                cause="each half of the card hangs on PCIe lanes for about 100 Gb/s; one cable lights both",
                remedy=f"give {half.name} an address in a network of its own, on every node "
                "(192.168.101.x/24 in NVIDIA's playbook)",
                node=node,
            )
        if is_narrow(one):
            yield Verdict(
                "PCIE_BELOW_MAXIMUM",
                Severity.WARN,
                f"the PCIe link of {one.name} is below what card and slot can do",
                evidence=f"{_link(one.pcie_gts, one.pcie_lanes)}, possible "
                f"{_link(one.pcie_gts_most, one.pcie_lanes_most)}",
                cause="firmware of before April 2026 wired half of the card too narrow, or it trained badly",
                remedy="update the firmware; else shut down, take the node off power for a minute",
                node=node,
            )
    yield from _ambiguous(seat)
    for hca in seat.lost:
        yield Verdict(
            "GID_DISAGREES",
            Severity.WARN,
            f"{hca.device} is left out: its RoCE v2 entry is not at the index of the others",
            evidence=f"{hca.address} is entry {hca.gid_index}, NCCL would take {hca.gid_own}; "
            f"{seat.hcas[0].device} needs {seat.gid_index}",
            cause="a rank has one NCCL_IB_GID_INDEX for all its ports",
            remedy=f"take surplus addresses off {hca.interface}, or set it down and up again",
            node=node,
        )


def _link(gts: float | None, lanes: int | None) -> str:
    """Either may be unknown: a kernel shows the speed of a link that is down as `Unknown`."""
    return f"{'?' if gts is None else format(gts, 'g')} GT/s x{'?' if lanes is None else lanes}"


def _ipv4(interface: Interface) -> bool:
    return any(ipaddress.ip_interface(text).version == 4 for text in interface.addresses)


def _ambiguous(seat: Seat) -> Iterator[Verdict]:
    """Two interfaces of one node in overlapping networks, one of them in use."""
    used = {hca.interface for hca in seat.hcas} | {seat.interface}
    placed = [
        (one.name, text, ipaddress.ip_interface(text).network)
        for one in seat.member.fabric.interfaces
        if one.up and one.kind != "loopback"
        for text in one.addresses
        if not ipaddress.ip_interface(text).ip.is_link_local or ":" not in text
    ]
    pairs = [
        f"{a[0]} {a[1]} and {b[0]} {b[1]}"
        for at, a in enumerate(placed)
        for b in placed[at + 1 :]
        if a[0] != b[0] and used & {a[0], b[0]} and a[2].version == b[2].version and a[2].overlaps(b[2])
    ]
    if pairs:
        yield Verdict(
            "ROUTE_AMBIGUOUS",
            Severity.WARN,
            "two interfaces of the node are in one network",
            evidence=f"on {seat.member.name}: {'; '.join(pairs)}",
            cause="packets leave, and ARP is answered, by either: SSH works while NCCL hangs one way",
            remedy="give each half a network of its own (192.168.100.x, 192.168.101.x in NVIDIA's playbook)",
            node=seat.member.id,
        )

"""What a profile or a node's own configuration says of the fabric, verified on that node.

A value that names what is not there would fail after minutes, on one rank, in words that name nothing. So it
is replaced by what was chosen, and the finding names the variable, its value and who gave it.
"""

import ipaddress
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from sparkd.fabric.choice import Choice, Seat
from sparkd.fabric.gids import wanted
from sparkd.records.fabric import ROCE_V2, Interface, NodeFabric, RdmaPort
from sparkd.records.verdict import Severity, Verdict


@dataclass(frozen=True, slots=True)
class Pin:
    name: str
    value: str
    giver: str
    """In words: `the profile`, `the node's [rank.env]`."""


def reason_against(pin: Pin, seat: Seat, choice: Choice) -> str | None:
    """Why this value cannot work on the seat's node; None if it can, or cannot be judged."""
    check = _check_of(pin.name)
    if check is None or not seat.member.fabric.readable:
        return None
    return check(pin.value, seat, choice)


def wrong(pin: Pin, seat: Seat, choice: Choice) -> Verdict | None:
    """The finding, where there is a reason against a value."""
    reason = reason_against(pin, seat, choice)
    if reason is None:
        return None
    return Verdict(
        _id_of(pin.name),
        Severity.WARN,
        f"{pin.name}={pin.value} is not used on {seat.member.name}: {reason}",
        evidence=f"{pin.name}={pin.value}, from {pin.giver}",
        cause="names and indices differ between nodes, and change with cables and reboots",
        remedy=f"leave {pin.name} out of {pin.giver}: sparkd finds it for each node at every launch",
        node=seat.member.id,
    )


def own_address(choice: Choice) -> Iterator[Verdict]:
    """Where a node's configuration says that ranks meet, if it cannot be there. One rank meets nobody."""
    if choice.topology == "alone":
        return
    for seat in choice.seats:
        member = seat.member
        if not member.fabric.readable:
            continue
        held = {str(one) for one in _addresses(member.fabric)}
        if member.pinned_address is not None and member.pinned_address not in held:
            yield Verdict(
                "HOST_IP_FOREIGN",
                Severity.BLOCK,
                f"{member.pinned_address} is no address of {member.name}",
                evidence="fabric_address in its agent.toml",
                cause="addresses changed since it was written there",
                remedy="take fabric_address and fabric_interface out of /etc/sparkd/agent.toml",
                node=member.id,
            )
        elif member.pinned_interface is not None and member.fabric.interface(member.pinned_interface) is None:
            yield Verdict(
                "IFNAME_STALE_CONCRETE",
                Severity.WARN,
                f"{member.name} has no interface {member.pinned_interface}: {seat.interface} is used",
                evidence="fabric_interface in its agent.toml",
                cause="names differ between nodes, and change with cables and reboots",
                remedy="take fabric_interface out of /etc/sparkd/agent.toml",
                node=member.id,
            )


Check = Callable[[str, Seat, Choice], str | None]


def _check_of(name: str) -> Check | None:
    if name == "NCCL_SOCKET_IFNAME":
        return _nccl_interfaces
    if name.endswith("_IFNAME"):
        return _interfaces
    return _CHECKS.get(name)


def _id_of(name: str) -> str:
    ids = {"NCCL_IB_HCA": "HCA_ABSENT", "UCX_NET_DEVICES": "HCA_ABSENT", "VLLM_HOST_IP": "HOST_IP_FOREIGN"}
    return "GID_MISMATCH" if name == "NCCL_IB_GID_INDEX" else ids.get(name, "IFNAME_STALE_CONCRETE")


def _interfaces(value: str, seat: Seat, choice: Choice) -> str | None:
    for name in _listed(value):
        if (reason := _interface(name, seat.member.fabric.interface(name), choice)) is not None:
            return reason
    return None


def _nccl_interfaces(value: str, seat: Seat, choice: Choice) -> str | None:
    """`=a,b` exact names, `a,b` beginnings, `^a,b` all but these."""
    fabric = seat.member.fabric
    if value.startswith("^"):
        out = _listed(value.removeprefix("^").removeprefix("="))
        hit = any(seat.interface is not None and seat.interface.startswith(name) for name in out)
        return f"it excludes {seat.interface}, where ranks meet" if hit else None
    exact = value.startswith("=")
    for name in _listed(value.removeprefix("=")):
        found = [
            one for one in fabric.interfaces if one.name == name or (not exact and one.name.startswith(name))
        ]
        reasons = [_interface(one.name, one, choice) for one in found]
        if not found:
            return _interface(name, None, choice)
        if None not in reasons:
            return reasons[0]
    return None


def _interface(name: str, found: Interface | None, choice: Choice) -> str | None:
    if found is None:
        return f"there is no interface {name}"
    if not found.up:
        return f"{name} is down"
    version = choice.version
    if not any(ipaddress.ip_interface(text).version == version for text in found.addresses):
        return f"{name} has no IPv{version} address"
    return None


def _host_ip(value: str, seat: Seat, _choice: Choice) -> str | None:
    held = {str(address) for address in _addresses(seat.member.fabric)}
    return None if value in held else f"{value} is no address of this node"


def _addresses(fabric: NodeFabric) -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    for interface in fabric.interfaces:
        for text in interface.addresses:
            yield ipaddress.ip_interface(text).ip


def _hcas(value: str, seat: Seat, _choice: Choice) -> str | None:
    """As NCCL reads it: `=` exact, else a beginning; `^` all but these; `:N` a port."""
    if value.startswith("^"):
        return None
    exact = value.startswith("=")
    for text in _listed(value.removeprefix("=")):
        name, _, number = text.partition(":")
        found = [
            port
            for port in _ports(seat.member.fabric)
            if (port.device == name or (not exact and port.device.startswith(name)))
            and number in ("", str(port.port))
        ]
        if (reason := _usable(text, found)) is not None:
            return reason
    return None


def _ucx(value: str, seat: Seat, choice: Choice) -> str | None:
    for text in _listed(value):
        name, _, number = text.partition(":")
        if name == "all":
            continue
        if not number:
            reason = _interface(name, seat.member.fabric.interface(name), choice)
        else:
            ports = [p for p in _ports(seat.member.fabric) if (p.device, str(p.port)) == (name, number)]
            reason = _usable(text, ports)
        if reason is not None:
            return reason
    return None


def _usable(name: str, found: list[RdmaPort]) -> str | None:
    if not found:
        return f"there is no RDMA device {name}"
    if not any(port.active for port in found):
        return f"{name} is {(found[0].state or 'not active').lower()}"
    return None


def _gid_index(value: str, seat: Seat, _choice: Choice) -> str | None:
    try:
        index = int(value)
    except ValueError:
        return "it is no number, which NCCL reads as 0"
    if index < 0:
        return None
    for hca in seat.hcas + seat.lost:
        ports = {(port.device, port.port): port for port in _ports(seat.member.fabric)}
        port = ports[hca.device, hca.port]
        if wanted(port, hca.interface, ipaddress.ip_address(hca.address)) == index:
            continue
        entry = next((gid for gid in port.gids if gid.index == index), None)
        is_what = f"{entry.type} of {entry.address}" if entry else "empty"
        return f"entry {index} of {hca.device} is {is_what}; {ROCE_V2} of {hca.address} is {hca.gid_index}"
    return None


def _ports(fabric: NodeFabric) -> Iterator[RdmaPort]:
    seen = set()
    for interface in fabric.interfaces:
        for port in interface.rdma:
            if (port.device, port.port) not in seen:
                seen.add((port.device, port.port))
                yield port


def _listed(value: str) -> list[str]:
    return [text.strip() for text in value.split(",") if text.strip()]


_CHECKS: Final[dict[str, Check]] = {
    "VLLM_HOST_IP": _host_ip,
    "NCCL_IB_HCA": _hcas,
    "NCCL_IB_GID_INDEX": _gid_index,
    "UCX_NET_DEVICES": _ucx,
}

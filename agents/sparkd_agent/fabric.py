"""A node's network, from sysfs and `/proc/net`: interfaces, RDMA ports and GIDs, routes. Reads only."""

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from sparkd.records.fabric import Gid, Interface, NodeFabric, RdmaPort, Route
from sparkd_agent import netlink
from sparkd_agent.nccl_conf import nccl_settings
from sparkd_agent.sysfs import names, number, pcie_most, text, whole

_ETHERNET, _INFINIBAND, _LOOPBACK = 1, 32, 772
_PCI: Final = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)
_ROUTE_UP, _ROUTE_REJECT, _ROUTE_LOCAL = 0x1, 0x200, 0x80000000
_HOTPLUG: Final = Path("sys/bus/platform/devices/MTKP0001:00/pcie_hotplug")

Addresses = Callable[[], Mapping[str, Sequence[str]]]


def discover(
    root: Path = Path("/"),
    addresses: Addresses = netlink.addresses,
    nccl_files: Iterable[Path] = (),
) -> NodeFabric:
    """`nccl_files`: as `sparkd_agent.nccl_conf` tells them.

    Takes milliseconds and asks no device: sysfs below `root`, and the kernel's list of addresses.

    Without that list nothing is seen: interfaces that seem to have no address would be judged by it.
    """
    try:
        known = addresses()
    except OSError:
        return NodeFabric()
    ports = list(_rdma_ports(root / "sys/class/infiniband"))
    found = tuple(
        _interface(root / "sys/class/net" / name, tuple(known.get(name, ())), ports)
        for name in names(root / "sys/class/net")
        if (root / "sys/class/net" / name).is_dir()
    )
    routes = (*_ipv4_routes(root / "proc/net/route"), *_ipv6_routes(root / "proc/net/ipv6_route"))
    off = _hotplug_off(root, any(one.rdma for one in found))
    return NodeFabric(found, routes, off, nccl_settings(nccl_files, root))


def _interface(
    folder: Path, addresses: tuple[str, ...], ports: Sequence[tuple[RdmaPort, list[str]]]
) -> Interface:
    device = folder / "device"
    carrier, speed = whole(folder / "carrier"), whole(folder / "speed")
    state = text(folder / "operstate")
    pci = device.resolve().name if device.exists() else ""
    lanes, lanes_most = whole(device / "current_link_width"), pcie_most(device, "max_link_width")
    return Interface(
        name=folder.name,
        kind=_kind(folder),
        up=state == "up" or (state == "unknown" and carrier == 1),
        carrier=None if carrier is None else bool(carrier),
        mtu=whole(folder / "mtu"),
        speed_mbit=speed if speed is not None and speed > 0 else None,
        mac=text(folder / "address"),
        addresses=addresses,
        pci=pci if _PCI.fullmatch(pci) else None,
        pcie_gts=number(device / "current_link_speed"),
        pcie_gts_most=pcie_most(device, "max_link_speed"),
        pcie_lanes=lanes,
        pcie_lanes_most=None if lanes_most is None else int(lanes_most),
        rdma=tuple(port for port, its in ports if folder.name in its),
    )


def _kind(folder: Path) -> str:
    kind = whole(folder / "type")
    if kind == _LOOPBACK:
        return "loopback"
    if (folder / "wireless").exists() or (folder / "phy80211").exists():
        return "wireless"
    if (folder / "bridge").is_dir():
        return "bridge"
    if not (folder / "device").exists():
        return "virtual"
    return {_ETHERNET: "ethernet", _INFINIBAND: "infiniband"}.get(kind or 0, "other")


def _rdma_ports(folder: Path) -> Iterator[tuple[RdmaPort, list[str]]]:
    """Every port, with the interfaces that send through it."""
    for device in names(folder):
        netdevs = names(folder / device / "device" / "net")
        listed = [name for name in names(folder / device / "ports") if name.isdigit()]
        for number_ in listed:
            port = _rdma_port(folder / device / "ports" / number_, device)
            # The table names VLANs and bonds too; a port that is down has an empty one.
            its = {gid.netdev for gid in port.gids if gid.netdev}
            yield port, sorted(its | set(netdevs)) if len(listed) == 1 else sorted(its)


def _rdma_port(folder: Path, device: str) -> RdmaPort:
    state = text(folder / "state")
    return RdmaPort(
        device=device,
        port=int(folder.name),
        state=state.partition(":")[2].strip() if state else None,
        link_layer=text(folder / "link_layer"),
        rate_gbit=number(folder / "rate"),
        gids=tuple(gids_of(folder)),
    )


def gids_of(folder: Path, first: int | None = None) -> Iterator[Gid]:
    """Entries of a port's table that are not empty; of a long one the `first` so many."""
    for name in sorted((name for name in names(folder / "gids") if name.isdigit()), key=int)[:first]:
        try:
            address = ipaddress.IPv6Address(text(folder / "gids" / name) or "::")
        except ValueError:
            continue
        if int(address):
            yield Gid(
                int(name),
                str(address.ipv4_mapped or address),
                text(folder / "gid_attrs/types" / name),
                text(folder / "gid_attrs/ndevs" / name),
            )


def _ipv4_routes(file: Path) -> Iterator[Route]:
    for line in (text(file) or "").splitlines()[1:]:
        words = line.split()
        flags = int(words[3], 16) if len(words) > 7 else 0
        if flags & _ROUTE_UP and not flags & _ROUTE_REJECT:
            gateway = _little_endian(words[2])
            network = ipaddress.IPv4Network((int(_little_endian(words[1])), str(_little_endian(words[7]))))
            yield Route(str(network), words[0], str(gateway) if int(gateway) else None, int(words[6]))


def _little_endian(digits: str) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(bytes.fromhex(digits)[::-1])


def _ipv6_routes(file: Path) -> Iterator[Route]:
    for line in (text(file) or "").splitlines():
        words = line.split()
        flags = int(words[8], 16) if len(words) > 9 else 0
        network = ipaddress.IPv6Network((int(words[0], 16), int(words[1], 16))) if flags else None
        if network is None or network.is_multicast or flags & (_ROUTE_REJECT | _ROUTE_LOCAL):
            continue
        if flags & _ROUTE_UP:
            gateway = ipaddress.IPv6Address(int(words[4], 16))
            yield Route(str(network), words[9], str(gateway) if int(gateway) else None, int(words[5], 16))


def _hotplug_off(root: Path, has_rdma: bool) -> bool | None:
    """Whether the card of a Spark is away because its firmware switched it off (package of February 2026)."""
    enabled = whole(root / _HOTPLUG / "hotplug_enabled")
    return None if enabled is None else bool(enabled) and not has_rdma

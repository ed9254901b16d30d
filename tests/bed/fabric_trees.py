"""Trees of sysfs and /proc/net as machines have them, built in a folder.

Formats, and what cannot be read, are those of the kernel's documents of its ABI; names and PCI addresses of
the four halves are a DGX Spark's, as reported by owners.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sparkd.records.fabric import NodeFabric
from sparkd_agent.fabric import discover

LAN = "enP7s7"
HALVES = {
    # port, half: netdev, RDMA device, PCI address
    (0, "A"): ("enp1s0f0np0", "rocep1s0f0", "0000:01:00.0"),
    (0, "B"): ("enP2p1s0f0np0", "roceP2p1s0f0", "0002:01:00.0"),
    (1, "A"): ("enp1s0f1np1", "rocep1s0f1", "0000:01:00.1"),
    (1, "B"): ("enP2p1s0f1np1", "roceP2p1s0f1", "0002:01:00.1"),
}


@dataclass
class Tree:
    """One machine's tree below `root`; `addresses` are what its kernel would list."""

    root: Path
    addresses: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _routes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.root / "sys/class/net").mkdir(parents=True)
        (self.root / "proc/net").mkdir(parents=True)
        self.interface("lo", kind=772, state="unknown", mtu=65536, addresses=("127.0.0.1/8", "::1/128"))

    def discovered(self) -> NodeFabric:
        return discover(self.root, lambda: self.addresses)

    def interface(
        self,
        name: str,
        *,
        pci: str = "",
        addresses: Sequence[str] = (),
        up: bool = True,
        speed: int | None = None,
        mtu: int = 1500,
        kind: int = 1,
        state: str = "",
        lanes: int = 4,
        marks: Sequence[str] = (),
    ) -> None:
        folder = self.root / "sys/class/net" / name
        write(folder, operstate=state or ("up" if up else "down"), mtu=str(mtu), type=str(kind))
        write(folder, carrier="1" if up else "0", speed=str(speed if speed is not None and up else -1))
        write(folder, address="02:00:00:00:00:01")
        for mark in marks:
            (folder / mark).mkdir()
        if pci:
            device = self._device(pci, lanes)
            (folder / "device").symlink_to(device)
            (device / "net" / name).mkdir(parents=True)
        self.addresses[name] = tuple(addresses)
        for address in addresses:
            self.route(str(ipaddress.ip_interface(address).network), name)

    def _device(self, pci: str, lanes: int) -> Path:
        bridge = self.root / "sys/devices" / f"pci{pci[:7]}" / f"{pci[:5]}00:00.{pci[-1]}"
        device = bridge / pci
        gen5 = "32.0 GT/s PCIe"
        write(bridge, max_link_width="4", max_link_speed=gen5)
        write(device, current_link_width=str(lanes), max_link_width="16")
        write(device, current_link_speed=gen5, max_link_speed=gen5)
        return device

    def rdma(
        self,
        device: str,
        netdev: str,
        *,
        active: bool = True,
        gids: Mapping[int, tuple[str, str]] | None = None,
    ) -> None:
        """`gids`: type and address by index. Without them: as the kernel makes them of the addresses."""
        place = (self.root / "sys/class/net" / netdev / "device").resolve()
        port = place / "infiniband" / device / "ports" / "1"
        state, rate = ("4: ACTIVE", "200 Gb/sec (4X HDR)") if active else ("1: DOWN", "40 Gb/sec (4X QDR)")
        write(port, state=state, rate=rate, link_layer="Ethernet", phys_state="5: LinkUp")
        link = self.root / "sys/class/infiniband" / device
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(place / "infiniband" / device)
        (place / "infiniband" / device / "device").symlink_to(place)
        table = self._gids(netdev) if gids is None and active else dict(gids or {})
        for index in range(max([8, *(i + 1 for i in table)])):
            kind, address = table.get(index, ("", "::"))
            write(port / "gids", **{str(index): _exploded(address)})
            if kind:  # of an empty entry neither can be read
                write(port / "gid_attrs/types", **{str(index): kind})
                write(port / "gid_attrs/ndevs", **{str(index): netdev})

    def _gids(self, netdev: str) -> dict[int, tuple[str, str]]:
        addresses = ["fe80::7aae:cdff:fe00:1", *(text.partition("/")[0] for text in self.addresses[netdev])]
        kinds = ("IB/RoCE v1", "RoCE v2")
        return {2 * i + j: (kinds[j], a) for i, a in enumerate(addresses) for j in (0, 1)}

    def route(self, network: str, interface: str, gateway: str = "0.0.0.0", metric: int = 0) -> None:
        to = ipaddress.ip_network(network)
        if isinstance(to, ipaddress.IPv6Network):
            words = (int(to.network_address), to.prefixlen, 0, 0, 0, metric, 1, 0, 1)
            line = "{:032x} {:02x} {:032x} {:02x} {:032x} {:08x} {:08x} {:08x} {:08x}".format(*words)
            with (self.root / "proc/net/ipv6_route").open("a") as file:
                file.write(f"{line} {interface:>8}\n")
            return
        if interface != "lo":
            words = (_hex(to.network_address), _hex(ipaddress.IPv4Address(gateway)), "0003", 0, 0, metric)
            end = (_hex(to.netmask), 0, 0, 0)
            self._routes.append("\t".join([interface, *(str(word) for word in (*words, *end))]))
        head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT"
        write(self.root / "proc/net", route="\n".join([head, *self._routes]))


def spark(root: Path, number: int, cables: Mapping[int, Sequence[Sequence[str]]], **changes: object) -> Tree:
    """A Spark on the office LAN. `cables`: by port the addresses of half A and of half B.

    `changes`: `speed`, `mtu`, `lanes` of all halves.
    """
    tree = Tree(root)
    tree.interface(LAN, addresses=(f"10.0.0.{number}/24",), speed=10_000)
    tree.route("0.0.0.0/0", LAN, gateway="10.0.0.254")
    tree.interface("docker0", addresses=("172.17.0.1/16",), up=False, marks=("bridge",))
    tree.interface("wlP9s9", up=False, marks=("wireless",))
    for (port, half), (netdev, device, pci) in HALVES.items():
        cabled = cables.get(port)
        addresses = () if cabled is None else tuple(cabled["AB".index(half)])
        how = {"speed": 200_000, "mtu": 9000, **changes}
        tree.interface(netdev, pci=pci, addresses=addresses, up=cabled is not None, **how)  # type: ignore[arg-type]
        tree.rdma(device, netdev, active=cabled is not None)
    return tree


def pair(folder: Path, ports: tuple[int, int] = (0, 0)) -> tuple[Tree, Tree]:
    """Two Sparks with one cable between them, each half in a network of its own (NVIDIA's playbook)."""
    first, second = (
        spark(folder / f"n{n}", n, {port: ((f"192.168.100.{n}/24",), (f"192.168.101.{n}/24",))})
        for n, port in enumerate(ports, 1)
    )
    return first, second


def switched(folder: Path, count: int = 4, speeds: Mapping[int, int] | None = None) -> list[Tree]:
    """Sparks on one switch, the same port on each."""
    return [
        spark(
            folder / f"n{n}",
            n,
            {1: ((f"192.168.100.{n}/24",), (f"192.168.101.{n}/24",))},
            speed=(speeds or {}).get(n, 200_000),
        )
        for n in range(1, count + 1)
    ]


def ring(folder: Path, count: int = 3) -> list[Tree]:
    """Sparks in a ring: port 0 of each leads to port 1 of the next one, two networks a cable."""
    trees = []
    for n in range(1, count + 1):
        here, before = 2 * (n - 1), 2 * ((n - 2) % count)
        cables = {
            0: ((f"192.168.{here}.1/24",), (f"192.168.{here + 1}.1/24",)),
            1: ((f"192.168.{before}.2/24",), (f"192.168.{before + 1}.2/24",)),
        }
        trees.append(spark(folder / f"n{n}", n, cables))
    return trees


def half_without_address(folder: Path) -> list[Tree]:
    """Only half A was given addresses; the other one has its cable all the same."""
    return [spark(folder / f"n{n}", n, {1: ((f"192.168.100.{n}/24",), ())}) for n in (1, 2)]


def hotplugged_off(root: Path, number: int) -> Tree:
    """A Spark whose firmware switched the network card off: it is not on the PCIe bus."""
    tree = Tree(root)
    tree.interface(LAN, addresses=(f"10.0.0.{number}/24",), speed=10_000)
    tree.interface("wlP9s9", addresses=(f"10.1.0.{number}/24",), marks=("wireless",))
    write(root / "sys/bus/platform/devices/MTKP0001:00/pcie_hotplug", hotplug_enabled="1", debug_state="0")
    return tree


def datacentre(root: Path, number: int, cards: int = 4) -> Tree:
    """A server with single-port cards of other names, each in all its lanes and a network of its own."""
    tree = Tree(root)
    tree.interface("eno1", addresses=(f"10.0.0.{number}/24",), speed=25_000)
    for card in range(cards):
        netdev = f"ens{card}np0"
        pci = f"0000:{0x19 + 0x10 * card:02x}:00.0"
        tree.interface(
            netdev, pci=pci, addresses=(f"172.16.{card}.{number}/24",), speed=400_000, mtu=4200, lanes=16
        )
        bridge = (root / "sys/class/net" / netdev / "device").resolve().parent
        write(bridge, max_link_width="16")
        tree.rdma(f"mlx5_{card}", netdev)
    return tree


def plain(root: Path, number: int) -> Tree:
    """No RDMA at all: one network."""
    tree = Tree(root)
    tree.interface(
        "eth0", pci="0000:00:03.0", addresses=(f"10.0.0.{number}/24", f"fd00::{number}/64"), speed=1000
    )
    return tree


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")


def _hex(address: ipaddress.IPv4Address) -> str:
    return address.packed[::-1].hex().upper()


def _exploded(address: str) -> str:
    ip = ipaddress.ip_address(address)
    full = ip if isinstance(ip, ipaddress.IPv6Address) else ipaddress.IPv6Address(f"::ffff:{ip}")
    return full.exploded

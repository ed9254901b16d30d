"""What an agent finds of its network, in trees as machines have them."""

import socket
import struct
from pathlib import Path

from sparkd.records.fabric import Gid, NodeFabric, RdmaPort, Route
from sparkd_agent.fabric import discover
from sparkd_agent.netlink import addresses, entries
from tests.bed.fabric_trees import Tree, datacentre, hotplugged_off, pair, plain, spark


def test_a_half_of_a_sparks_port(tmp_path: Path) -> None:
    found = pair(tmp_path)[0].discovered()
    half = found.interface("enP2p1s0f0np0")
    assert half is not None
    assert (half.kind, half.up, half.carrier, half.mtu, half.speed_mbit) == (
        "ethernet",
        True,
        True,
        9000,
        200_000,
    )
    assert half.addresses == ("192.168.101.1/24",)
    assert half.pci == "0002:01:00.0"
    assert (half.pcie_gts, half.pcie_gts_most, half.pcie_lanes, half.pcie_lanes_most) == (32.0, 32.0, 4, 4)
    link_local = "fe80::7aae:cdff:fe00:1"
    assert half.rdma == (
        RdmaPort(
            "roceP2p1s0f0",
            1,
            "ACTIVE",
            "Ethernet",
            200.0,
            (
                Gid(0, link_local, "IB/RoCE v1", half.name),
                Gid(1, link_local, "RoCE v2", half.name),
                Gid(2, "192.168.101.1", "IB/RoCE v1", half.name),
                Gid(3, "192.168.101.1", "RoCE v2", half.name),
            ),
        ),
    )
    assert Route("192.168.101.0/24", half.name) in found.routes
    assert Route("0.0.0.0/0", "enP7s7", "10.0.0.254") in found.routes


def test_a_port_without_a_cable_keeps_its_device_and_has_no_speed(tmp_path: Path) -> None:
    half = pair(tmp_path)[0].discovered().interface("enp1s0f1np1")
    assert half is not None
    assert (half.up, half.carrier, half.speed_mbit) == (False, False, None)
    assert half.rdma == (RdmaPort("rocep1s0f1", 1, "DOWN", "Ethernet", 40.0),)


def test_the_cards_lanes_against_the_slots(tmp_path: Path) -> None:
    """The BIOS of before April 2026 wired half B to two lanes."""
    half = spark(tmp_path / "n", 1, {0: ((), ())}, lanes=2).discovered().interface("enp1s0f0np0")
    assert half is not None
    assert (half.pcie_lanes, half.pcie_lanes_most) == (2, 4)


def test_a_machine_with_other_device_names(tmp_path: Path) -> None:
    found = datacentre(tmp_path / "n", 1).discovered()
    assert {i.name: [p.device for p in i.rdma] for i in found.interfaces if i.rdma} == {
        f"ens{n}np0": [f"mlx5_{n}"] for n in range(4)
    }


def test_a_card_that_firmware_switched_off(tmp_path: Path) -> None:
    assert hotplugged_off(tmp_path / "n1", 1).discovered().hotplug_off is True
    assert pair(tmp_path / "pair")[1].discovered().hotplug_off is None


def test_a_switch_that_left_the_card_on(tmp_path: Path) -> None:
    tree = spark(tmp_path / "n", 1, {0: ((), ())})
    folder = tmp_path / "n/sys/bus/platform/devices/MTKP0001:00/pcie_hotplug"
    folder.mkdir(parents=True)
    (folder / "hotplug_enabled").write_text("1\n")
    assert tree.discovered().hotplug_off is False


def test_no_rdma_at_all(tmp_path: Path) -> None:
    found = plain(tmp_path / "n", 1).discovered()
    assert [i.rdma for i in found.interfaces] == [(), ()]
    assert Route("fd00::/64", "eth0") in found.routes


def test_a_container_without_sysfs(tmp_path: Path) -> None:
    found = discover(tmp_path, lambda: {"eth0": ("10.0.0.1/24",)})
    assert found == NodeFabric()
    assert not found.readable


def test_what_the_kernel_makes_of_other_links(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "n")
    tree.interface("br0", marks=("bridge",))
    tree.interface("veth1")
    tree.interface("wlP9s9", marks=("wireless",))
    tree.interface("ib0", kind=32, pci="0000:05:00.0")
    kinds = {i.name: i.kind for i in tree.discovered().interfaces}
    assert {kinds[name] for name in kinds if name != "lo"} == {"bridge", "virtual", "wireless", "infiniband"}
    assert (kinds["br0"], kinds["veth1"], kinds["lo"]) == ("bridge", "virtual", "loopback")


def test_a_vlan_on_a_port_has_the_ports_gids(tmp_path: Path) -> None:
    tree = spark(tmp_path / "n", 1, {})
    tree.interface("enp9s0", pci="0000:09:00.0")
    tree.rdma("rocep9s0", "enp9s0", gids={0: ("RoCE v2", "10.9.0.1")})
    tree.interface("enp9s0.7", addresses=("10.97.0.1/24",))
    port = (tmp_path / "n/sys/class/infiniband/rocep9s0").resolve() / "ports/1"
    (port / "gids/5").write_text("0000:0000:0000:0000:0000:ffff:0a61:0001\n")
    (port / "gid_attrs/types/5").write_text("RoCE v2\n")
    (port / "gid_attrs/ndevs/5").write_text("enp9s0.7\n")
    vlan = tree.discovered().interface("enp9s0.7")
    assert vlan is not None
    assert [(g.index, g.address) for p in vlan.rdma for g in p.gids if g.netdev == vlan.name] == [
        (5, "10.97.0.1")
    ]


def test_an_interface_that_vanishes_meanwhile_or_lies(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "n")
    (tmp_path / "n/sys/class/net/gone").symlink_to("nowhere")
    (tmp_path / "n/sys/class/net/bonding_masters").write_text("")  # a file, not an interface
    tree.interface("eth0", state="nonsense")
    (tmp_path / "n/sys/class/net/eth0/mtu").write_text("many\n")
    found = tree.discovered()
    assert [i.name for i in found.interfaces] == ["eth0", "lo"]
    assert (found.interfaces[0].up, found.interfaces[0].mtu) == (False, None)


def test_addresses_that_cannot_be_read_are_not_none(tmp_path: Path) -> None:
    def refused() -> dict[str, tuple[str, ...]]:
        raise PermissionError

    tree = plain(tmp_path, 1)
    assert discover(tree.root, refused) == NodeFabric()


def test_an_interface_without_a_name_any_more_takes_no_other_with_it() -> None:
    def name_of(index: int) -> str:
        if index == 1:
            raise OSError("no interface with this index")
        return socket.if_indextoname(index)

    everything = addresses()
    assert addresses(name_of) == {
        name: listed for name, listed in everything.items() if socket.if_nametoindex(name) != 1
    }


def test_this_machine() -> None:
    assert "127.0.0.1/8" in addresses()["lo"]
    loopback = discover().interface("lo")
    assert loopback is not None
    assert (loopback.kind, loopback.up) == ("loopback", True)
    assert "127.0.0.1/8" in loopback.addresses


def message(flags: int, *attributes: tuple[int, bytes], family: int = socket.AF_INET) -> bytes:
    body = struct.pack("=BBBBi", family, 24, flags, 0, 7)
    for kind, value in attributes:
        body += struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)
    return body


def test_addresses_of_the_kernel() -> None:
    own, peer = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])
    assert list(entries(message(0, (1, own)))) == [(7, "10.0.0.1/24")]
    assert list(entries(message(0, (1, peer), (3, b"eth0.1\0"), (2, own)))) == [(7, "10.0.0.1/24")]
    assert list(entries(message(0x40, (1, own)))) == [], "tentative"
    assert list(entries(message(0, (1, own), family=28))) == []
    assert list(entries(message(0) + b"\0\0\0\0")) == []

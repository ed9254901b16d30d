"""What is chosen on machines as they are: the variables of every rank, by kind of network."""

import ipaddress
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkd.fabric.choice import Choice, choose, variables
from sparkd.fabric.findings import findings
from sparkd.fabric.gids import nccls_own
from sparkd.fabric.member import Member
from sparkd.fabric.pins import own_address
from sparkd.records.fabric import Gid, NodeFabric, RdmaPort, Route
from sparkd.records.verdict import Severity, Verdict
from tests.bed.fabric_trees import (
    Tree,
    datacentre,
    half_without_address,
    hotplugged_off,
    pair,
    plain,
    ring,
    spark,
    switched,
)


def members(trees: Sequence[Tree], **changes: Any) -> tuple[Member, ...]:
    return tuple(
        replace(Member(f"n{n}", f"spark-{n}", f"10.0.0.{n}", tree.discovered()), **changes)
        for n, tree in enumerate(trees, 1)
    )


def env(choice: Choice, rank: int) -> dict[str, str]:
    return {name: value for name, value, _ in variables(choice, choice.seats[rank])}


def found(choice: Choice, nccl: dict[str, str] | None = None) -> dict[str, Verdict]:
    return {verdict.id: verdict for verdict in (*findings(choice, nccl), *own_address(choice))}


DEBUG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}


def test_two_sparks_and_one_cable(tmp_path: Path) -> None:
    choice = choose(members(pair(tmp_path)))
    assert (choice.topology, choice.network, choice.is_rdma) == ("pair", "192.168.100.0/24", True)
    assert env(choice, 1) == {
        "VLLM_HOST_IP": "192.168.100.2",
        "GLOO_SOCKET_IFNAME": "enp1s0f0np0",
        "NCCL_SOCKET_IFNAME": "=enp1s0f0np0",
        "NCCL_IB_HCA": "=rocep1s0f0,roceP2p1s0f0",
        **DEBUG,
    }
    assert [seat.mtu for seat in choice.seats] == [9000, 9000]
    assert found(choice) == {}


def test_the_cable_is_in_different_ports(tmp_path: Path) -> None:
    """One name for all nodes is what kills a rank."""
    choice = choose(members(pair(tmp_path, ports=(1, 0))))
    assert [env(choice, rank)["GLOO_SOCKET_IFNAME"] for rank in (0, 1)] == ["enp1s0f1np1", "enp1s0f0np0"]
    assert env(choice, 0)["NCCL_IB_HCA"] == "=rocep1s0f1,roceP2p1s0f1"
    assert found(choice) == {}


def test_four_on_a_switch(tmp_path: Path) -> None:
    choice = choose(members(switched(tmp_path)))
    assert (choice.topology, choice.network) == ("switch", "192.168.100.0/24")
    assert [seat.address for seat in choice.seats] == [f"192.168.100.{n}" for n in range(1, 5)]
    assert found(choice) == {}


def test_a_ring_of_three_meets_on_the_lan(tmp_path: Path) -> None:
    choice = choose(members(ring(tmp_path)))
    assert (choice.topology, choice.network) == ("ring", "10.0.0.0/24")
    assert env(choice, 0) == {
        "VLLM_HOST_IP": "10.0.0.1",
        "GLOO_SOCKET_IFNAME": "enP7s7",
        "NCCL_SOCKET_IFNAME": "=enP7s7",
        "NCCL_IB_HCA": "=rocep1s0f0,roceP2p1s0f0,rocep1s0f1,roceP2p1s0f1",
        **DEBUG,
        "NCCL_IB_MERGE_NICS": "0",
        "NCCL_CROSS_NIC": "1",
        "NCCL_IB_SUBNET_AWARE_ROUTING": "1",
        "NCCL_NET_PLUGIN": "none",
    }
    assert found(choice) == {}


@pytest.mark.parametrize(
    ("version", "ok"), [("2.29.7", False), ("2.30.7", True), ("2.30", True), ("3.0.1", True), ("dev", True)]
)
def test_a_ring_needs_an_nccl_that_tells_cables_apart(tmp_path: Path, version: str, *, ok: bool) -> None:
    choice = choose(members(ring(tmp_path)))
    verdicts = found(choice, {"n1": "2.30.1", "n2": version})
    assert ("RING_NCCL" not in verdicts) is ok
    if not ok:
        assert verdicts["RING_NCCL"].node == "n2"
        assert version in verdicts["RING_NCCL"].evidence


def test_two_nodes_of_a_ring_are_a_pair(tmp_path: Path) -> None:
    choice = choose(members(ring(tmp_path)[:2]))
    assert (choice.topology, choice.network) == ("pair", "192.168.0.0/24")
    assert env(choice, 1)["NCCL_IB_HCA"] == "=rocep1s0f1,roceP2p1s0f1"


def test_a_ring_of_four_is_refused(tmp_path: Path) -> None:
    verdict = found(choose(members(ring(tmp_path, 4))))["RING_TOO_LARGE"]
    assert verdict.severity is Severity.BLOCK


def test_a_half_without_an_address_is_left_out_and_told(tmp_path: Path) -> None:
    choice = choose(members(half_without_address(tmp_path)))
    assert env(choice, 0)["NCCL_IB_HCA"] == "=rocep1s0f1"
    verdict = found(choice)["FABRIC_HALF"]
    assert verdict.severity is Severity.WARN
    assert "enP2p1s0f1np1 no address" in verdict.evidence
    assert "give enP2p1s0f1np1 an address" in verdict.remedy


def test_a_card_that_was_switched_off_blocks(tmp_path: Path) -> None:
    choice = choose(members([pair(tmp_path / "p")[0], hotplugged_off(tmp_path / "n2", 2)]))
    assert (choice.topology, choice.network) == ("sockets", "10.0.0.0/24")
    assert env(choice, 0)["NCCL_IB_DISABLE"] == "1"
    verdict = found(choice)["FABRIC_ABSENT"]
    assert verdict.severity is Severity.BLOCK
    assert "spark-2: its firmware has switched the network card off" in verdict.evidence
    assert "put the cable in" in verdict.remedy


def test_never_by_radio_where_there_is_a_wire(tmp_path: Path) -> None:
    choice = choose(members([hotplugged_off(tmp_path / f"n{n}", n) for n in (1, 2)]))
    assert [seat.interface for seat in choice.seats] == ["enP7s7", "enP7s7"]


def test_a_server_with_cards_of_other_names(tmp_path: Path) -> None:
    """Cards that differ in more than their domain, or have all their lanes, are no halves."""
    choice = choose(members([datacentre(tmp_path / f"n{n}", n) for n in (1, 2)]))
    assert (choice.topology, choice.network) == ("pair", "172.16.0.0/24")
    assert env(choice, 0)["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1,mlx5_2,mlx5_3"
    assert found(choice) == {}


def test_no_rdma_at_all_is_no_fault(tmp_path: Path) -> None:
    choice = choose(members([plain(tmp_path / f"n{n}", n) for n in (1, 2)]))
    assert (choice.topology, choice.network, choice.is_rdma) == ("sockets", "10.0.0.0/24", False)
    assert env(choice, 1) == {
        "VLLM_HOST_IP": "10.0.0.2",
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_SOCKET_IFNAME": "=eth0",
    }
    assert found(choice) == {}


def test_nodes_with_ipv6_only(tmp_path: Path) -> None:
    trees = [spark(tmp_path / f"n{n}", n, {0: ((f"fd00:1::{n}/64",), (f"fd00:2::{n}/64",))}) for n in (1, 2)]
    choice = choose(members(trees))
    assert (choice.network, choice.version) == ("fd00:1::/64", 6)
    told = env(choice, 0)
    assert (told["VLLM_HOST_IP"], told["NCCL_SOCKET_FAMILY"]) == ("fd00:1::1", "AF_INET6")
    assert (told["NCCL_IB_ADDR_FAMILY"], told["NCCL_IB_HCA"]) == ("AF_INET6", "=rocep1s0f0,roceP2p1s0f0")


def test_a_container_without_sysfs_gets_what_is_configured(tmp_path: Path) -> None:
    seen = members(pair(tmp_path))[0]
    blind = Member("n2", "spark-2", "10.0.0.2", NodeFabric(), "192.168.100.2", "eth9")
    choice = choose((seen, blind))
    assert choice.topology == "unseen"
    assert env(choice, 1) == {
        "VLLM_HOST_IP": "192.168.100.2",
        "GLOO_SOCKET_IFNAME": "eth9",
        "NCCL_SOCKET_IFNAME": "=eth9",
    }
    assert found(choice)["FABRIC_UNREADABLE"].node == "n2"
    assert found(choose((seen, replace(blind, looked=False)))) == {}, "a local set does not look"


def test_nodes_without_a_common_network(tmp_path: Path) -> None:
    one, two = Tree(tmp_path / "1"), Tree(tmp_path / "2")
    one.interface("eth0", addresses=("10.1.0.1/24",))
    two.interface("eth0", addresses=("10.2.0.1/24",))
    verdict = found(choose(members([one, two])))["NO_COMMON_NETWORK"]
    assert verdict.severity is Severity.BLOCK
    assert "spark-1: 10.1.0.0/24; spark-2: 10.2.0.0/24" in verdict.evidence


@pytest.mark.parametrize("cabled", [True, False])
def test_prefixes_that_differ_are_named(tmp_path: Path, *, cabled: bool) -> None:
    ends = [f"192.168.100.{n}/{length}" for n, length in ((1, 24), (2, 16))]
    trees = [Tree(tmp_path / f"n{n}") for n in (1, 2)]
    if cabled:
        trees = [spark(tmp_path / f"s{n}", n, {0: ((end,), ())}) for n, end in enumerate(ends, 1)]
    else:
        for tree, end in zip(trees, ends, strict=True):
            tree.interface("enp1s0f0np0", addresses=(end,))
    verdict = found(choose(members(trees)))["FABRIC_ABSENT" if cabled else "NO_COMMON_NETWORK"]
    assert verdict.evidence.endswith(
        f"the lengths of the prefixes differ: {ends[0]} on enp1s0f0np0 of spark-1, "
        f"{ends[1]} on enp1s0f0np0 of spark-2"
    )


def test_a_port_without_an_entry_for_its_address_blocks(tmp_path: Path) -> None:
    trees = pair(tmp_path)
    for device in ("rocep1s0f0", "roceP2p1s0f0"):
        for kind in (tmp_path / "n2/sys/class/infiniband" / device / "ports/1/gid_attrs/types").iterdir():
            kind.write_text("IB/RoCE v1\n")
    choice = choose(members(trees))
    assert (choice.topology, choice.is_rdma) == ("pair", False)
    verdict = found(choice)["FABRIC_ABSENT"]
    assert (verdict.severity, verdict.node) == (Severity.BLOCK, "n2")
    assert "enp1s0f0np0 192.168.100.2/24" in verdict.evidence


def test_docker0_is_the_same_everywhere_and_leads_nowhere(tmp_path: Path) -> None:
    trees = [plain(tmp_path / f"n{n}", n) for n in (1, 2)]
    for tree in trees:
        tree.interface("docker0", addresses=("172.17.0.1/16",), marks=("bridge",), speed=100_000)
    assert choose(members(trees)).network == "10.0.0.0/24"


# GIDs.


def test_the_index_differs_between_nodes(tmp_path: Path) -> None:
    """Cases 17 and 18: 3 here and 4 there; NCCL finds each by itself, so none is set."""
    trees = pair(tmp_path)
    place = (tmp_path / "n2/sys/class/infiniband/rocep1s0f0").resolve() / "ports/1"
    for kind, name in (("gids", "4"), ("gid_attrs/types", "4"), ("gid_attrs/ndevs", "4")):
        (place / kind / "3").rename(place / kind / name)
    (place / "gids/3").write_text("0000:0000:0000:0000:0000:0000:0000:0000\n")
    choice = choose(members(trees))
    assert [[hca.gid_index for hca in seat.hcas] for seat in choice.seats] == [[3, 3], [4, 3]]
    assert all("NCCL_IB_GID_INDEX" not in env(choice, rank) for rank in (0, 1))


def test_nccl_would_take_another_address(tmp_path: Path) -> None:
    """A second, older address on both halves: NCCL takes its entry, which leads nowhere."""
    trees = [
        spark(
            tmp_path / f"n{n}",
            n,
            {0: ((f"10.5{n}.0.9/24", f"192.168.100.{n}/24"), (f"10.6{n}.0.9/24", f"192.168.101.{n}/24"))},
        )
        for n in (1, 2)
    ]
    choice = choose(members(trees))
    assert env(choice, 0)["NCCL_IB_GID_INDEX"] == "5"
    assert env(choice, 0)["NCCL_IB_HCA"] == "=rocep1s0f0,roceP2p1s0f0"


def test_one_index_for_all_is_wrong_for_one_half(tmp_path: Path) -> None:
    trees = [
        spark(
            tmp_path / f"n{n}",
            n,
            {0: ((f"10.5{n}.0.9/24", f"192.168.100.{n}/24"), (f"192.168.101.{n}/24",))},
        )
        for n in (1, 2)
    ]
    choice = choose(members(trees))
    assert (env(choice, 0)["NCCL_IB_GID_INDEX"], env(choice, 0)["NCCL_IB_HCA"]) == ("5", "=rocep1s0f0")
    assert "roceP2p1s0f0 is left out" in found(choice)["GID_DISAGREES"].title


V1, V2 = "IB/RoCE v1", "RoCE v2"


@pytest.mark.parametrize(
    ("gids", "family", "taken"),
    [
        ([(0, "fe80::1", V1), (1, "fe80::1", V2), (2, "10.0.0.1", V1), (3, "10.0.0.1", V2)], 4, 3),
        ([(0, "fe80::1", V1), (4, "10.0.0.1", V1)], 4, 4),
        ([(0, "fe80::1", V1), (1, "fe80::1", V2)], 4, 0),
        ([(0, "fe80::1", V1), (1, "fe80::1", V2)], 6, 1),
        ([(0, "10.0.0.1", V2)], 4, 0),
        ([], 4, None),
    ],
)
def test_what_nccl_takes_by_itself(gids: list[tuple[int, str, str]], family: int, taken: int | None) -> None:
    port = RdmaPort("d", gids=tuple(Gid(index, address, kind) for index, address, kind in gids))
    assert nccls_own(port, family) == taken


# What speaks against a choice.


def test_the_mtu_of_one_end(tmp_path: Path) -> None:
    trees = pair(tmp_path)
    (tmp_path / "n2/sys/class/net/enp1s0f0np0/mtu").write_text("1500\n")
    verdict = found(choose(members(trees)))["MTU_MISMATCH"]
    assert (verdict.severity, verdict.node) == (Severity.BLOCK, "n2")
    assert "9000 on enp1s0f0np0 of spark-1, 1500 on enp1s0f0np0 of spark-2" in verdict.evidence
    assert "on spark-2 `sudo ip link set dev enp1s0f0np0 mtu 9000`" in verdict.remedy


def test_the_mtu_of_one_end_where_packets_are_tcps(tmp_path: Path) -> None:
    trees = [plain(tmp_path / f"n{n}", n) for n in (1, 2)]
    (tmp_path / "n2/sys/class/net/eth0/mtu").write_text("9000\n")
    assert found(choose(members(trees)))["MTU_MISMATCH"].severity is Severity.WARN


def test_the_mtu_of_the_other_half_of_one_end(tmp_path: Path) -> None:
    trees = pair(tmp_path)
    (tmp_path / "n1/sys/class/net/enP2p1s0f0np0/mtu").write_text("1500\n")
    assert "192.168.101.0/24" in found(choose(members(trees)))["MTU_MISMATCH"].title


def test_halves_may_differ_from_each_other(tmp_path: Path) -> None:
    trees = pair(tmp_path)
    for n in (1, 2):
        (tmp_path / f"n{n}/sys/class/net/enP2p1s0f0np0/mtu").write_text("4200\n")
    assert "MTU_MISMATCH" not in found(choose(members(trees)))


def test_one_link_settled_at_100(tmp_path: Path) -> None:
    choice = choose(members(switched(tmp_path, speeds={3: 100_000})))
    verdict = found(choice)["LINK_SLOW"]
    assert (verdict.node, verdict.severity) == ("n3", Severity.WARN)
    assert "spark-3: 100 Gb/s" in verdict.evidence
    assert "spark-2" not in verdict.evidence


def test_all_links_settled_at_100(tmp_path: Path) -> None:
    choice = choose(members(switched(tmp_path, speeds=dict.fromkeys(range(1, 5), 100_000))))
    assert found(choice).keys() == {"LINK_SLOW"}, "a Spark's port can do 200"


def test_half_the_lanes(tmp_path: Path) -> None:
    cables = {0: (("192.168.100.1/24",), ("192.168.101.1/24",))}
    other = {0: (("192.168.100.2/24",), ("192.168.101.2/24",))}
    trees = [spark(tmp_path / "n1", 1, cables, lanes=2), spark(tmp_path / "n2", 2, other)]
    verdict = found(choose(members(trees)))["PCIE_BELOW_MAXIMUM"]
    assert (verdict.node, verdict.evidence) == ("n1", "32 GT/s x2, possible 32 GT/s x4")


def test_half_the_lanes_at_a_speed_that_is_not_shown(tmp_path: Path) -> None:
    trees = pair(tmp_path)
    device = tmp_path / "n1/sys/class/net/enp1s0f0np0/device"
    (device / "current_link_width").write_text("2\n")
    (device / "current_link_speed").write_text("Unknown\n")
    verdict = found(choose(members(trees)))["PCIE_BELOW_MAXIMUM"]
    assert verdict.evidence == "? GT/s x2, possible 32 GT/s x4"


@pytest.mark.parametrize(
    ("first", "second"),
    [("192.168.100.{}/24", "192.168.100.1{}/24"), ("169.254.35.{}/16", "169.254.9.{}/16")],
    ids=["one-24", "link-local"],
)
def test_both_halves_in_one_network(tmp_path: Path, first: str, second: str) -> None:
    trees = [spark(tmp_path / f"n{n}", n, {1: ((first.format(n),), (second.format(n),))}) for n in (1, 2)]
    choice = choose(members(trees))
    verdict = found(choice)["ROUTE_AMBIGUOUS"]
    assert verdict.severity is Severity.WARN
    assert f"enP2p1s0f1np1 {second.format(2)} and enp1s0f1np1 {first.format(2)}" in verdict.evidence
    assert [seat.interface for seat in choice.seats] == ["enp1s0f1np1"] * 2, "the same half everywhere"
    assert env(choice, 0)["NCCL_IB_HCA"] == "=rocep1s0f1,roceP2p1s0f1"


def test_a_route_that_leads_out_of_the_network(tmp_path: Path) -> None:
    """One direction is enough: what spark-2 sends would take the LAN."""
    first, second = members(pair(tmp_path))
    astray = replace(
        second.fabric, routes=(*second.fabric.routes, Route("192.168.100.1/32", "enP7s7", "10.0.0.254"))
    )
    choice = choose((first, replace(second, fabric=astray)))
    assert choice.network == "192.168.101.0/24"
    assert "spark-2 would send to spark-1 by enP7s7" in found(choice)["ROUTE_STRAY"].evidence


# What a node's configuration says.


def test_a_nodes_own_address_is_kept_where_it_is_true(tmp_path: Path) -> None:
    """The second half instead of the first."""
    trees = pair(tmp_path)
    pinned = [
        replace(member, pinned_address=f"192.168.101.{n}", pinned_interface="enP2p1s0f0np0")
        for n, member in enumerate(members(trees), 1)
    ]
    choice = choose(pinned)
    assert [seat.address for seat in choice.seats] == ["192.168.101.1", "192.168.101.2"]
    assert env(choice, 0)["GLOO_SOCKET_IFNAME"] == "enP2p1s0f0np0"
    assert found(choice) == {}


def test_a_nodes_own_address_is_gone(tmp_path: Path) -> None:
    first, second = members(pair(tmp_path))
    verdict = found(choose((first, replace(second, pinned_address="192.168.7.2"))))["HOST_IP_FOREIGN"]
    assert (verdict.severity, verdict.node) == (Severity.BLOCK, "n2")


@pytest.mark.parametrize("written", ["spark-2.local", "192.168.100.2/24"])
def test_a_nodes_own_address_is_none(tmp_path: Path, written: str) -> None:
    first, second = members(pair(tmp_path))
    verdict = found(choose((first, replace(second, pinned_address=written))))["HOST_IP_FOREIGN"]
    assert (verdict.node, written in verdict.title) == ("n2", True)


def test_a_nodes_own_interface_is_gone(tmp_path: Path) -> None:
    first, second = members(pair(tmp_path))
    choice = choose((first, replace(second, pinned_interface="enp1s0f9")))
    assert choice.seats[1].interface == "enp1s0f0np0"
    assert found(choice)["IFNAME_STALE_CONCRETE"].node == "n2"


def test_the_interface_of_a_node_follows_its_address(tmp_path: Path) -> None:
    """Written down before the cable was moved to the other port."""
    first, second = members(pair(tmp_path, ports=(0, 1)))
    pinned = replace(second, pinned_address="192.168.100.2", pinned_interface="enp1s0f0np0")
    assert choose((first, pinned)).seats[1].interface == "enp1s0f1np1"


def test_one_rank_meets_nobody(tmp_path: Path) -> None:
    choice = choose(members(pair(tmp_path))[:1])
    assert env(choice, 0) == {
        "VLLM_HOST_IP": "10.0.0.1",
        "GLOO_SOCKET_IFNAME": "enP7s7",
        "NCCL_SOCKET_IFNAME": "=enP7s7",
    }
    assert found(choice) == {}


def test_one_rank_does_not_need_the_address_where_others_would_meet(tmp_path: Path) -> None:
    member = replace(members(pair(tmp_path))[0], pinned_address="192.168.7.1", pinned_interface="enp1s0f9")
    choice = choose([member])
    assert env(choice, 0) == {
        "VLLM_HOST_IP": "10.0.0.1",
        "GLOO_SOCKET_IFNAME": "enP7s7",
        "NCCL_SOCKET_IFNAME": "=enP7s7",
    }
    assert found(choice) == {}
    held = choose([replace(member, pinned_address="192.168.100.1")])
    assert env(held, 0)["VLLM_HOST_IP"] == "192.168.100.1"
    blind = choose([replace(member, fabric=NodeFabric())])
    assert env(blind, 0)["VLLM_HOST_IP"] == "192.168.7.1", "what cannot be seen is believed"


def test_every_address_that_is_chosen_is_the_nodes_own(tmp_path: Path) -> None:
    kinds = [pair(tmp_path / "p"), switched(tmp_path / "s"), ring(tmp_path / "r")]
    for trees in kinds:
        for seat in choose(members(trees)).seats:
            interface = seat.member.fabric.interface(seat.interface or "")
            assert interface is not None
            assert seat.address in {str(ipaddress.ip_interface(text).ip) for text in interface.addresses}

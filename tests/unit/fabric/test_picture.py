"""The fabric drawn for people."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sparkd.coordinator.fabric import fabric_view
from sparkd.errors import NotFound
from sparkd.fabric.picture import picture
from sparkd.fleet.nodes import Node
from sparkd.fleet.state import Fleet
from sparkd.records.fabric import FabricView
from sparkd.records.report import NodeFacts
from tests.bed.fabric_trees import Tree, half_without_address, hotplugged_off, pair, ring


def fleet(trees: Sequence[Tree]) -> Fleet:
    nodes = {}
    for n, tree in enumerate(trees, 1):
        facts = NodeFacts(f"id-{n}", f"spark-{n}", f"10.0.0.{n}", f"10.0.0.{n}", fabric=tree.discovered())
        nodes[facts.id] = Node(facts.id, facts.name, facts)
    return Fleet("holder", 1, "instance", 0.0, nodes=nodes)


def drawn(view: FabricView) -> str:
    return "\n".join(line.rstrip() for line in picture(view))


def test_a_pair(tmp_path: Path) -> None:
    view = fabric_view(fleet(pair(tmp_path, ports=(0, 1))))
    assert (
        drawn(view)
        == """\
pair: the fastest network that all nodes are in is 192.168.100.0/24, with RDMA

══ 192.168.100.0/24  RDMA, ranks meet here
   ╠═ spark-1  enp1s0f0np0  192.168.100.1  200 Gb/s  MTU 9000  rocep1s0f0 (GID 3)
   ╚═ spark-2  enp1s0f1np1  192.168.100.2  200 Gb/s  MTU 9000  rocep1s0f1 (GID 3)

══ 192.168.101.0/24  RDMA
   ╠═ spark-1  enP2p1s0f0np0  192.168.101.1  200 Gb/s  MTU 9000  roceP2p1s0f0 (GID 3)
   ╚═ spark-2  enP2p1s0f1np1  192.168.101.2  200 Gb/s  MTU 9000  roceP2p1s0f1 (GID 3)

── 10.0.0.0/24
   ├─ spark-1  enP7s7  10.0.0.1  10 Gb/s  MTU 1500
   └─ spark-2  enP7s7  10.0.0.2  10 Gb/s  MTU 1500

   not used
   · spark-1 enP2p1s0f1np1: no cable, other half of enp1s0f1np1
   · spark-1 enp1s0f1np1: no cable, other half of enP2p1s0f1np1
   · spark-2 enP2p1s0f0np0: no cable, other half of enp1s0f0np0
   · spark-2 enp1s0f0np0: no cable, other half of enP2p1s0f0np0"""
    )


def test_a_ring_has_a_network_for_each_cable_and_meets_on_the_lan(tmp_path: Path) -> None:
    lines = drawn(fabric_view(fleet(ring(tmp_path)))).splitlines()
    assert lines[2] == "── 10.0.0.0/24  ranks meet here"
    heads = [line for line in lines if line.startswith("══")]
    assert heads == [f"══ 192.168.{n}.0/24  RDMA" for n in range(6)]


def test_what_is_not_used_says_why(tmp_path: Path) -> None:
    trees = [*half_without_address(tmp_path), hotplugged_off(tmp_path / "n3", 3)]
    text = drawn(fabric_view(fleet(trees)))
    assert "· spark-1 enP2p1s0f1np1: no address, other half of enp1s0f1np1" in text
    assert "· spark-3: its firmware has switched the network card off" in text


def test_a_node_that_does_not_look(tmp_path: Path) -> None:
    some = fleet(pair(tmp_path))
    node = some.nodes["id-2"]
    assert node.facts is not None
    blind = replace(node, facts=replace(node.facts, fabric=None))
    view = fabric_view(replace(some, nodes={**some.nodes, "id-2": blind}))
    assert "· spark-2: it does not show its network" in drawn(view)


def test_some_nodes_by_name_or_id_and_findings_by_name(tmp_path: Path) -> None:
    some = fleet([*half_without_address(tmp_path), hotplugged_off(tmp_path / "n3", 3)])
    view = fabric_view(some, ["spark-2", "id-1"])
    assert [seat.name for seat in view.seats] == ["spark-2", "spark-1"], "in the order of the ranks"
    assert {(one.id, one.node) for one in view.verdicts} == {("FABRIC_HALF", f"spark-{n}") for n in (1, 2)}
    assert view.seats[0].variables["NCCL_IB_HCA"] == "=rocep1s0f1"
    with pytest.raises(NotFound, match=r"no node spark-9 .* spark-1, spark-2, spark-3"):
        fabric_view(some, ["spark-9"])


def test_nobody_has_said_hello() -> None:
    assert drawn(fabric_view(Fleet("holder", 1, "instance", 0.0))) == "unseen: no node has said hello yet"

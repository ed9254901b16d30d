"""`sparkd fabric` on whole machines with networks: silent about healthy ones, and each fault by its name."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import msgspec
import pytest

from sparkd.records.fabric import FabricTest, FabricView
from tests.lab.cluster import Cluster
from tests.lab.faults import cut, parted

NODES = ("--nodes", "a,b")


def tried(four: Cluster) -> FabricTest:
    told = four.sparkd("fabric", "test", *NODES, "-o", "json", ok=(0, 1))
    return msgspec.json.decode(told, type=FabricTest)


def ids(done: FabricTest) -> set[tuple[str, str | None]]:
    return {(one.id, one.node) for one in (*done.view.verdicts, *done.verdicts)}


def test_healthy_nodes_reach_each_other_where_ranks_meet(four: Cluster) -> None:
    text = four.sparkd("fabric", "test")
    assert text.count("connected") == 12, "every direction of six pairs"
    done = tried(four)
    assert ids(done) == set()
    assert [seat.address for seat in done.view.seats] == [four[name].fabric.address for name in "ab"]
    assert {call.reached.mtu for call in done.calls if call.reached} == {1500}
    view = msgspec.json.decode(four.sparkd("fabric", "show", "-o", "json"), type=FabricView)
    assert [seat.name for seat in view.seats] == ["a", "b", "c", "d"]
    assert not view.verdicts


@contextmanager
def firewall(four: Cluster) -> Iterator[None]:
    """In front of b: what a begins on ephemeral ports is dropped, and nothing else."""
    room, source, to = four.lab.room, four["a"].fabric.port, four["b"].fabric.port
    rule = ("iifname", source, "oifname", to, "ether", "type", "ip")
    room.run("nft", "add", "table", "bridge", "wall")
    hook = ("{", "type", "filter", "hook", "forward", "priority", "0", ";", "}")
    room.run("nft", "add", "chain", "bridge", "wall", "drops", *hook)
    begins = ("tcp", "dport", "32768-60999", "tcp", "flags", "&", "(syn|ack)", "==", "syn")
    room.run("nft", "add", "rule", "bridge", "wall", "drops", *rule, *begins, "drop")
    try:
        yield
    finally:
        room.run("nft", "delete", "table", "bridge", "wall")


@contextmanager
def mtu(four: Cluster, *names: str) -> Iterator[None]:
    """Jumbo frames on these nodes; the switch takes none."""
    for name in names:
        four[name].run("ip", "link", "set", "dev", four[name].fabric.interface, "mtu", "9000")
    try:
        yield
    finally:
        for name in names:
            four[name].run("ip", "link", "set", "dev", four[name].fabric.interface, "mtu", "1500")


FAULTS: dict[str, tuple[Callable[[Cluster], AbstractContextManager[None]], str, str | None]] = {
    "firewall": (firewall, "FIREWALL", "b"),
    "one-way": (lambda four: cut(four.lab.room, four["a"].fabric, four["b"].fabric), "FABRIC_ONE_WAY", "a"),
    "apart": (lambda four: parted(four.lab.room, four["a"].fabric, four["b"].fabric), "FABRIC_NO_PATH", None),
    "mtu-of-one-end": (lambda four: mtu(four, "a"), "MTU_MISMATCH", "b"),
    "mtu-of-the-switch": (lambda four: mtu(four, "a", "b"), "MTU_PATH", "a"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named(four: Cluster, fault: str) -> None:
    plant, id_, node = FAULTS[fault]
    with plant(four):
        done = tried(four)
        assert (id_, node) in ids(done), done
        assert four.head.run("sparkd", "fabric", "test", *NODES, ok=(0, 1)).returncode == 1
        doctor = four.head.run("sparkd", "doctor", "tiny", *NODES, ok=(0, 1))
        assert (f"{id_} on {node}" if node else id_) in doctor.stdout
        assert doctor.returncode == 1
    assert ids(tried(four)) == set(), "it is cured"

"""When a launch wants a collective probe, and what makes it want another one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sparkd.preflight.collective import ask_of
from sparkd.records.fabric import Interface, NodeFabric, RdmaPort
from sparkd.records.facts import EngineVersions, MachineFacts
from sparkd.records.intent import Descriptor, Intent
from sparkd.records.preflight import Member
from sparkd.records.rank import Address, PinnedImage, RankSpec
from sparkd.records.report import NodeFacts

CARD = Interface(
    "fabric",
    up=True,
    mtu=9000,
    speed_mbit=200_000,
    addresses=("192.168.100.1/24",),
    rdma=(RdmaPort("mlx0", state="ACTIVE"),),
)
LAN = Interface("lan", up=True, mtu=1500, speed_mbit=10_000, addresses=("10.0.0.1/24",))


class Case:
    """Two ranks, and all that is known of their nodes."""

    def __init__(self) -> None:
        self.specs = [self._spec(number) for number in (0, 1)]
        self.nodes = [
            NodeFacts(
                f"id-{number}", f"n{number}", "10.0.0.1", "192.168.100.1", fabric=NodeFabric((CARD, LAN))
            )
            for number in (0, 1)
        ]
        engine = EngineVersions("default", packages={"torch": "2.11.0", "nccl": "2.28.9", "other": "1"})
        self.machines = [MachineFacts(1.0, driver="580.1", engines=(engine,), kernel="6.17") for _ in (0, 1)]
        self.boots = {"id-0": "boot-0", "id-1": "boot-1"}

    def _spec(self, number: int) -> RankSpec:
        env = {"GLOO_SOCKET_IFNAME": "fabric", "NCCL_IB_HCA": "=mlx0"}
        nothing = Descriptor("tiny", Intent("tiny", {}), 1, 1, (), 0)
        return RankSpec(
            "", "tiny", 1, number, 2, "process", "default", (), env, Address("192.168.100.1", 29600), nothing
        )

    def key(self) -> str:
        members = {
            node.id: Member(node.name, machine=one)
            for node, one in zip(self.nodes, self.machines, strict=True)
        }
        ask = ask_of(self.specs, self.nodes, members, self.boots)
        assert ask is not None
        return ask.key

    def change(self, what: str, **changes: Any) -> None:
        kept = getattr(self, what)
        kept[1] = replace(kept[1], **changes)

    def links(self, *interfaces: Interface) -> None:
        self.change("nodes", fabric=NodeFabric(interfaces))


MATTERS: dict[str, Callable[[Case], None]] = {
    "a boot": lambda case: case.boots.update({"id-1": "boot-2"}),
    "another node": lambda case: case.change("nodes", id="id-9"),
    "the driver": lambda case: case.change("machines", driver="580.2"),
    "nccl": lambda case: case.change(
        "machines", engines=(EngineVersions("default", packages={"torch": "2.11.0", "nccl": "2.30.0"}),)
    ),
    "an image": lambda case: case.change(
        "specs", runtime="docker", image=PinnedImage("vllm", "0123456789ab")
    ),
    "a variable": lambda case: case.change("specs", env={**case.specs[1].env, "NCCL_IB_GID_INDEX": "4"}),
    "an address": lambda case: case.links(replace(CARD, addresses=("192.168.100.1/30",)), LAN),
    "the mtu": lambda case: case.links(replace(CARD, mtu=1500), LAN),
    "the speed": lambda case: case.links(replace(CARD, speed_mbit=100_000), LAN),
    "the lanes": lambda case: case.links(replace(CARD, pcie_lanes=2), LAN),
    "the port": lambda case: case.links(replace(CARD, rdma=(RdmaPort("mlx0", state="DOWN"),)), LAN),
    "where they meet": lambda case: case.change("specs", rendezvous=Address("192.168.101.1", 29600)),
}
NO_MATTER: dict[str, Callable[[Case], None]] = {
    "a port": lambda case: case.change("specs", rendezvous=Address("192.168.100.1", 29777)),
    "a generation": lambda case: case.change("specs", generation=9, name="x"),
    "arguments": lambda case: case.change("specs", args=("serve", "/models/other")),
    "a key": lambda case: case.change("specs", secrets={"VLLM_API_KEY": "x"}),
    "the time": lambda case: case.change("machines", wall=99.0),
    "the kernel's memory": lambda case: case.change("machines", cma_free=7),
    "another package": lambda case: case.change(
        "machines",
        engines=(EngineVersions("default", packages={"torch": "2.11.0", "nccl": "2.28.9", "other": "2"}),),
    ),
    "the link's own address in IPv6": lambda case: case.links(
        replace(CARD, addresses=(*CARD.addresses, "fe80::1/64")), LAN
    ),
    "a link whose name only begins like that of a used one": lambda case: case.links(
        CARD, LAN, Interface("fab", up=True, mtu=1500)
    ),
    "a link that is not used": lambda case: case.links(CARD, replace(LAN, mtu=9000)),
}


@pytest.mark.parametrize("what", MATTERS)
def test_what_makes_it_go_again(what: str) -> None:
    case, same = Case(), Case()
    assert case.key() == same.key()
    MATTERS[what](case)
    assert case.key() != same.key()


@pytest.mark.parametrize("what", NO_MATTER)
def test_what_does_not(what: str) -> None:
    case = Case()
    NO_MATTER[what](case)
    assert case.key() == Case().key()


def test_one_rank_meets_nobody_and_a_local_set_no_network() -> None:
    case = Case()
    assert ask_of(case.specs[:1], case.nodes[:1], {}, {}) is None
    local = [replace(node, local=True) for node in case.nodes]
    assert ask_of(case.specs, local, {}, {}) is None
    assert ask_of(case.specs, case.nodes, {}, {}) is not None, "what is not known is no reason to skip it"

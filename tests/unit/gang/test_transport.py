"""Ranks that were given RDMA ports must not load a model for half an hour to serve over sockets."""

from typing import Literal

import pytest

from sparkd.clock import Instant
from sparkd.fleet.nodes import Node
from sparkd.gang import machine
from sparkd.gang.record import GangRecord
from sparkd.gang.state import Gang, Tick, World
from sparkd.records.intent import Descriptor, Intent
from sparkd.records.rank import Address, RankSpec
from sparkd.records.report import RankReport

INTENT = Intent("p", {"layout": {"tp": 2}})


def stepped(*, rdma: bool, transport: Literal["rdma", "sockets"] | None) -> Gang:
    """One step of a gang that loads; the second rank's NCCL has told which way it took."""
    specs = tuple(
        RankSpec(
            name=f"sparkd-d-g1-r{rank}",
            deployment="d",
            generation=1,
            rank=rank,
            ranks=2,
            runtime="process",
            engine="default",
            args=(),
            env={"NCCL_IB_HCA": "=rocep1s0f0"},
            rendezvous=Address("a", 1),
            descriptor=Descriptor("d", INTENT, 1, 1, ("a", "b"), 8100),
            rdma=rdma,
        )
        for rank in (0, 1)
    )
    record = GangRecord("d", INTENT, phase="loading", nodes=("a", "b"), generation=1, specs=specs)
    nodes = {}
    for spec, name in zip(specs, "ab", strict=True):
        told = transport if spec.rank else None
        report = RankReport(spec.name, "running", phase="loading", transport=told)
        nodes[name] = Node(
            name, f"node-{name}", greeted=True, heard=10.0, state="alive", reports={report.name: report}
        )
    after, _ = machine.step(Gang(record, launched_at=0.0), Tick(), World(nodes), Instant(10.0, 10.0))
    return after


def test_a_fall_to_sockets_ends_the_launch_and_says_where() -> None:
    after = stepped(rdma=True, transport="sockets")
    fall = after.record.fall
    assert fall is not None
    assert (fall.cause, fall.rank, fall.node) == ("TRANSPORT_SOCKETS", 1, "node-b")
    assert "although it was given =rocep1s0f0" in fall.reason
    assert "--force TRANSPORT_SOCKETS" in fall.remedy


@pytest.mark.parametrize(("rdma", "transport"), [(True, "rdma"), (True, None), (False, "sockets")])
def test_what_is_as_it_was_asked_for(rdma: bool, transport: Literal["rdma", "sockets"] | None) -> None:
    assert stepped(rdma=rdma, transport=transport).record.fall is None

"""Ranks that were given RDMA ports must not load a model for half an hour to serve over sockets."""

from dataclasses import replace
from typing import Literal

import pytest

from sparkd.clock import Instant
from sparkd.fleet.nodes import Node
from sparkd.gang import machine
from sparkd.gang.state import Gang, Tick, World
from sparkd.records.report import RankReport
from tests.unit.gang.test_mods import gang

GIVEN = {"NCCL_IB_HCA": "=rocep1s0f0"}


def stepped(
    *, rdma: bool, transport: Literal["rdma", "sockets"] | None, env: dict[str, str] | None = None
) -> Gang:
    """One step of a gang that loads; the second rank's NCCL has told which way it took."""
    before = gang("loading")
    env = GIVEN if env is None else env
    specs = tuple(replace(spec, env=env, rdma=rdma) for spec in before.record.specs)
    nodes = {}
    for spec, name in zip(specs, "ab", strict=True):
        told = transport if spec.rank else None
        report = RankReport(spec.name, "running", phase="loading", transport=told)
        nodes[name] = Node(
            name, f"node-{name}", greeted=True, heard=10.0, state="alive", reports={report.name: report}
        )
    before = replace(before, record=replace(before.record, specs=specs))
    after, _ = machine.step(before, Tick(), World(nodes), Instant(10.0, 10.0))
    return after


def test_a_fall_to_sockets_ends_the_launch_and_says_where() -> None:
    after = stepped(rdma=True, transport="sockets")
    fall = after.record.fall
    assert fall is not None
    assert (fall.cause, fall.rank, fall.node) == ("TRANSPORT_SOCKETS", 1, "node-b")
    assert "although it was given =rocep1s0f0" in fall.reason
    assert "--force TRANSPORT_SOCKETS" in fall.remedy
    required = stepped(rdma=True, transport="sockets", env={}).record.fall
    assert required is not None
    assert required.reason == "NCCL went over sockets although its profile requires RDMA"


@pytest.mark.parametrize(("rdma", "transport"), [(True, "rdma"), (True, None), (False, "sockets")])
def test_what_is_as_it_was_asked_for(rdma: bool, transport: Literal["rdma", "sockets"] | None) -> None:
    assert stepped(rdma=rdma, transport=transport).record.fall is None

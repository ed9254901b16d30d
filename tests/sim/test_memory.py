"""A node whose memory does not bear its rank: what becomes of the gang, with and without a coordinator."""

import pytest

from sparkd.records.report import Condemned
from sparkd.records.status import Phase
from tests.sim.world import World, intent

WHY = Condemned("MEMORY_THRASH", "MemAvailable 1.5 GiB, floor 4.0 GiB (serving): 60 % of the time all wait")


def phase_in(world: World, *phases: Phase, within: float) -> bool:
    return world.run_until(lambda: world.phase("d1") in phases, within)


def ready() -> World:
    world = World(21)
    world.run(0.3)
    assert world.people.up("d1", intent(2))
    assert phase_in(world, "ready", within=20)
    return world


def starve(world: World, rank: int) -> str:
    """The node on which that rank is condemned."""
    record = world.record("d1")
    assert record is not None
    node = record.nodes[rank]
    world.nodes[node].starve(record.specs[rank].name, WHY)
    return node


@pytest.mark.parametrize("rank", [0, 1])
def test_the_gang_is_ended_on_all_nodes_and_tries_once_more(rank: int) -> None:
    world = ready()
    node = starve(world, rank)
    assert phase_in(world, "recovering", within=0.4)  # before its own agent would have done it
    record = world.record("d1")
    assert record is not None
    assert record.fall is not None
    assert (record.fall.rank, record.fall.node, record.fall.cause) == (rank, node, "MEMORY_THRASH")
    assert record.fall.reason == WHY.reason
    assert "MEMORY_THRASH" in [verdict.id for verdict in record.verdicts]
    assert world.run_until(lambda: not world.living("d1"), 1.0)
    assert phase_in(world, "ready", within=20), world.timeline()
    starve(world, rank)
    assert phase_in(world, "failed", within=20), world.timeline()
    record = world.record("d1")
    assert record is not None
    assert "a second fall for memory" in record.reason
    assert not world.living("d1")


def test_without_a_coordinator_the_agent_does_it_alone() -> None:
    world = ready()
    node = starve(world, 1)
    world.kill_coordinator("in the test")  # before the report arrives
    assert world.run_until(lambda: not world.nodes[node].exists(), 1.5), world.timeline()
    assert phase_in(world, "recovering", within=20), world.timeline()
    record = world.record("d1")
    assert record is not None
    assert record.fall is not None
    assert record.fall.cause == "MEMORY_THRASH"


def test_a_rank_that_is_condemned_while_its_gang_ends_changes_nothing() -> None:
    world = ready()
    assert world.people.down("d1")
    starve(world, 1)
    assert phase_in(world, "stopped", within=20), world.timeline()
    record = world.record("d1")
    assert record is not None
    assert (record.falls, record.fall) == (0, None)

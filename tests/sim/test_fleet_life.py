"""Stories of what deployments share: reboots, drains, databases that are lost or old, two coordinators."""

import pytest

from tests.sim.test_gang_life import generation, ready
from tests.sim.world import World, intent


def names(world: World) -> list[str]:
    return sorted(rank.spec.name for rank in world.living("d1"))


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_a_power_cut_of_all_nodes_brings_the_deployment_back(order: tuple[str, str]) -> None:
    """Case 35: nothing starts until every needed node is there; one new generation."""
    world = World(31, ("a", "b"))
    ready(world)
    for name in order:
        world.faults.power_off(name, None)
    world.kill_coordinator("in the power cut")
    world.run(world.now + 3)
    world.faults.power_on(order[0])
    world.run(world.now + 20)
    assert world.living("d1") == []
    assert world.phase("d1") in ("pending", "recovering")
    world.faults.power_on(order[1])
    assert world.run_until(lambda: world.phase("d1") == "ready", 30), world.timeline()
    assert generation(world) == 2


def test_a_drained_node_keeps_what_runs_and_gets_nothing_new() -> None:
    world = World(32)
    ready(world)
    world.people.drain("b", drained=True)
    world.run(world.now + 3)
    assert world.phase("d1") == "ready"
    world.people.restart("d1", 1)
    assert world.run_until(lambda: world.phase("d1") == "ready" and generation(world) == 2, 20)
    record = world.record("d1")
    assert record is not None
    assert record.nodes == ("a", "c"), "a spare takes the drained node's place"
    world.people.up("d2", intent(1))
    world.run(world.now + 5)
    assert world.phase("d2") == "pending"
    world.people.drain("b", drained=False)
    assert world.run_until(lambda: world.phase("d2") == "ready", 10), world.timeline()


def test_a_deleted_database_is_filled_from_the_agents_and_no_rank_is_touched() -> None:
    world = World(33)
    ready(world)
    before = names(world)
    world.faults.lose_database()
    assert world.run_until(lambda: world.phase("d1") == "ready", 30), world.timeline()
    world.run(world.now + 5)
    assert names(world) == before
    assert generation(world) == 1
    assert world.people.down("d1")
    assert world.run_until(lambda: world.phase("d1") == "stopped", 20)


def test_while_a_member_is_silent_a_forgotten_deployment_is_held_and_down_ends_the_hold() -> None:
    world = World(34)
    ready(world)
    before = names(world)
    world.faults.cut_off("b")
    world.faults.lose_database()
    world.run(world.now + 30)
    assert names(world) == before, "nobody can know whether b runs a newer generation"
    fleet = world.coordinator.fleet
    assert fleet is not None
    assert fleet.held == {"d1"}
    waiting = fleet.gangs["d1"].waiting
    assert waiting is not None
    assert waiting.node == "b"
    assert world.people.down("d1")
    world.faults.heal()
    assert world.run_until(lambda: not world.living("d1"), 20), world.timeline()


def test_an_older_copy_of_the_database_raises_nothing_that_was_stopped() -> None:
    world = World(35)
    ready(world)
    world.faults.copy_database()
    assert world.people.down("d1")
    assert world.run_until(lambda: world.phase("d1") == "stopped", 20)
    world.run(world.now + 2)
    world.faults.restore_copy()
    world.run(world.now + 30)
    assert world.living("d1") == [], world.timeline()
    assert world.phase("d1") == "stopped"


def test_an_agent_that_lost_its_ledger_ends_nothing_and_stays_fenced() -> None:
    world = World(36)
    ready(world)
    before = names(world)
    node = world.nodes["b"]
    node.kill_agent()
    node.disk.rows.clear()
    node.disk.generations.clear()
    node.disk.deployments.clear()
    world.run(world.now + 1)
    world.faults.agent_back("b")
    world.run(world.now + 8)
    assert names(world) == before, world.timeline()
    assert world.phase("d1") == "ready"


def test_a_coordinator_of_another_holder_is_obeyed_by_nobody() -> None:
    world = World(37)
    ready(world)
    before = names(world)
    world.faults.add_rival(foreign=True, misled=("a", "b"))
    world.run(world.now + 30)
    assert world.rival is not None
    assert world.rival.fleet is None, "it has ended itself"
    assert names(world) == before
    assert world.phase("d1") == "ready"

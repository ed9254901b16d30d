"""What an agent did of its own accord, and what it is told of its gang."""

from dataclasses import replace

from sparkd.clock import Instant
from sparkd.fleet import machine
from sparkd.fleet.state import NodeSaid
from sparkd.records.report import AgentEvent
from tests.sim.world import World, intent

EVENT = AgentEvent("memory", "MemAvailable 1.5 GiB, floor 4.0 GiB (serving)", 5.0, "sparkd-d1-g1-r0")


def test_its_events_are_told_once_and_only_by_reports_in_order() -> None:
    world = World(41)
    world.run(1.0)
    fleet = world.coordinator.fleet
    assert fleet is not None
    report, _ = world.nodes["a"].report()
    report = replace(report, events=(EVENT,))
    now = Instant(world.now, world.now)
    fleet, commands, _ = machine.report(fleet, report, now)
    assert [c for c in commands if isinstance(c, NodeSaid)] == [NodeSaid("a", EVENT.reason, kind="memory")]
    _, commands, _ = machine.report(fleet, report, now)  # a second time, as after a lost answer
    assert not commands


def test_a_follower_hears_that_its_gang_is_ready() -> None:
    world = World(42)
    world.run(0.3)
    assert world.people.up("d1", intent(2, ("a", "b")))
    world.run_until(lambda: world.phase("d1") == "launching", 5)
    fleet = world.coordinator.fleet
    assert fleet is not None
    _, _, answer = machine.report(fleet, world.nodes["b"].report()[0], Instant(world.now, world.now))
    assert answer.serving == ()
    assert world.run_until(lambda: world.phase("d1") == "ready", 20)
    fleet = world.coordinator.fleet
    for node, names in (("a", ("sparkd-d1-g1-r0",)), ("b", ("sparkd-d1-g1-r1",)), ("c", ())):
        _, _, answer = machine.report(fleet, world.nodes[node].report()[0], Instant(world.now, world.now))
        assert answer.serving == names

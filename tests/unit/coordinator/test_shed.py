"""A node that is short of memory, as the status shows it."""

from dataclasses import replace

from sparkd.clock import Instant
from sparkd.coordinator import view
from sparkd.fleet.state import Fleet
from sparkd.records.memory import Memory
from sparkd.records.report import Sample
from sparkd.records.verdict import Severity, Verdict
from tests.sim.world import World, intent

SHORT = Sample(
    Memory(128, 3, 1),
    gpu={"watts": 46.0},
    shed="MemAvailable 3.0 GiB, floor 4.0 GiB (serving): below the floor for 2 s",
    verdicts=(Verdict("MEMORY_LOW", Severity.WARN, "memory is short"),),
)


def ready_fleet() -> tuple[Fleet, Instant]:
    world = World(31)
    world.run(0.3)
    assert world.people.up("d1", intent(2, ("a", "b")))
    assert world.run_until(lambda: world.phase("d1") == "ready", 20)
    assert world.coordinator.fleet is not None
    return world.coordinator.fleet, Instant(world.now, world.now)


def with_sample(fleet: Fleet, name: str, sample: Sample) -> Fleet:
    node = next(node for node in fleet.nodes.values() if node.name == name)
    return replace(fleet, nodes={**fleet.nodes, node.id: replace(node, sample=sample)})


def test_one_short_node_sheds_the_whole_gang() -> None:
    fleet, now = ready_fleet()
    before = view.deployment_status(fleet, fleet.gangs["d1"], now, {})
    assert (before.admit, "shed" in before.conditions) == (True, False)
    fleet = with_sample(fleet, "b", SHORT)
    after = view.deployment_status(fleet, fleet.gangs["d1"], now, {})
    assert (after.admit, after.phase, "shed" in after.conditions) == (False, "ready", True)
    shown = next(node for node in view.node_statuses(fleet) if node.name == "b")
    assert (shown.memory, shown.gpu) == (SHORT.memory, {"watts": 46.0})
    assert [(verdict.id, verdict.node) for verdict in shown.verdicts] == [("MEMORY_LOW", "b")]


def test_a_node_of_somebody_else_sheds_nobody() -> None:
    fleet, now = ready_fleet()
    fleet = with_sample(fleet, "c", SHORT)
    assert view.deployment_status(fleet, fleet.gangs["d1"], now, {}).admit


def test_what_a_silent_node_last_said_is_not_shown() -> None:
    fleet, _ = ready_fleet()
    fleet = with_sample(fleet, "b", SHORT)
    node = next(node for node in fleet.nodes.values() if node.name == "b")
    fleet = replace(fleet, nodes={**fleet.nodes, node.id: replace(node, state="silent")})
    shown = next(node for node in view.node_statuses(fleet) if node.name == "b")
    assert (shown.memory, shown.gpu, shown.verdicts) == (None, {}, ())

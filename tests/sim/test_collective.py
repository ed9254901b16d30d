"""The collective probe before a launch, on the real machines: what stops it, what warns, what is skipped."""

from dataclasses import replace

import pytest

from sparkd.fleet import collectives
from tests.sim.coordinator import LIMITS
from tests.sim.world import World, intent

PAIR = intent(2, ("a", "b"))


def careful(seed: int) -> World:
    world = World(seed)
    world.coordinator.proves = True
    world.run(0.3)
    return world


def verdicts(world: World) -> set[tuple[str, str, str | None, bool]]:
    record = world.record("d1")
    assert record is not None
    return {(one.id, one.severity, one.node, one.waived) for one in record.verdicts}


def probes(world: World) -> list[str]:
    return [name for node in world.nodes.values() for name in node.started_names if "probe-" in name]


def told(world: World) -> list[str]:
    return [line for line in world.story if " probe: " in line]


def test_it_goes_before_the_first_launch_and_its_ranks_are_gone_when_the_model_loads() -> None:
    world = careful(71)
    assert world.people.up("d1", PAIR)
    assert world.run_until(lambda: len(probes(world)) == 2, 3), world.timeline()
    fleet = world.coordinator.fleet
    assert fleet is not None
    waiting = fleet.gangs["d1"].waiting
    assert waiting is not None
    assert waiting.what == "the collective probe: rank 0 on a, rank 1 on b to load torch"
    assert world.record("d1").generation == 0  # type: ignore[union-attr]
    assert world.run_until(lambda: world.phase("d1") == "ready", 10), world.timeline()
    assert verdicts(world) == set()
    assert {rank.spec.kind for node in world.nodes.values() for rank in node.exists()} == {"serve"}


def test_a_restart_after_a_fall_does_not_wait_for_it() -> None:
    world = careful(72)
    assert world.people.up("d1", PAIR)
    assert world.run_until(lambda: world.phase("d1") == "ready", 10), world.timeline()
    world.faults.kill_rank("d1", 1)
    assert world.run_until(lambda: world.phase("d1") == "recovering", 5), world.timeline()
    assert world.run_until(lambda: world.phase("d1") == "ready", 20), world.timeline()
    assert len(probes(world)) == 2
    assert "nothing that it depends on has changed" in told(world)[-1]


def test_another_deployment_on_the_same_nodes_does_not_repeat_it() -> None:
    world = careful(73)
    assert world.people.up("d1", PAIR)
    assert world.run_until(lambda: world.phase("d1") == "ready", 10), world.timeline()
    world.people.down("d1")
    assert world.run_until(lambda: world.phase("d1") == "stopped", 10), world.timeline()
    assert world.people.up("d2", PAIR)
    assert world.run_until(lambda: world.phase("d2") == "ready", 10), world.timeline()
    assert len(probes(world)) == 2


def test_a_node_that_was_started_anew_is_tried_anew() -> None:
    world = careful(74)
    assert world.people.up("d1", PAIR)
    assert world.run_until(lambda: world.phase("d1") == "ready", 10), world.timeline()
    world.faults.power_off("b", 1.0)
    assert world.run_until(lambda: world.phase("d1") != "ready", 40), world.timeline()
    assert world.run_until(lambda: world.phase("d1") == "ready", 40), world.timeline()
    assert len(probes(world)) == 4


def test_who_never_arrives_is_named_and_a_person_may_start_all_the_same() -> None:
    world = careful(75)
    world.nodes["b"].deaf = True
    assert world.people.up("d1", PAIR)
    assert world.run_until(lambda: world.phase("d1") == "failed", LIMITS.collective_s + 2), world.timeline()
    assert verdicts(world) == {("COLLECTIVE_ABSENT", "block", "b", False)}
    assert world.run_until(lambda: not any(node.exists() for node in world.nodes.values()), 3), (
        world.timeline()
    )
    assert world.people.up("d1", replace(PAIR, forced=("COLLECTIVE_ABSENT",)))
    assert world.run_until(lambda: world.phase("d1") == "ready", LIMITS.collective_s + 10), world.timeline()
    assert verdicts(world) == {("COLLECTIVE_ABSENT", "block", "b", True)}


def test_what_cannot_be_tried_warns_and_starts() -> None:
    world = careful(76)
    world.nodes["b"].has_torch = False
    assert world.people.up("d1", PAIR)
    assert world.run_until(lambda: world.phase("d1") == "ready", 10), world.timeline()
    assert verdicts(world) == {("FABRIC_UNPROVEN", "warn", "b", False)}
    started = len(probes(world))
    world.faults.kill_rank("d1", 0)
    assert world.run_until(lambda: world.phase("d1") == "recovering", 5), world.timeline()
    assert world.run_until(lambda: world.phase("d1") == "ready", 20), world.timeline()
    assert len(probes(world)) == started, "nobody is there to read the warning again"


def test_down_during_the_probe_is_done_when_nothing_of_it_is_left() -> None:
    world = careful(77)
    assert world.people.up("d1", PAIR)
    assert world.run_until(lambda: len(probes(world)) == 2, 3), world.timeline()
    for node in world.nodes.values():
        for rank in node.exists():
            rank.stubborn_until = world.now + 2.0
    world.people.down("d1")
    assert world.run_until(lambda: world.phase("d1") == "stopped", 10), world.timeline()
    assert not any(node.exists() for node in world.nodes.values())


def test_a_coordinator_that_dies_during_the_probe_begins_it_anew_with_a_higher_number() -> None:
    world = careful(78)
    assert world.people.up("d1", PAIR)
    assert world.run_until(lambda: len(probes(world)) == 2, 3), world.timeline()
    world.kill_coordinator("by the test")
    world.coordinator_back()
    assert world.run_until(lambda: world.phase("d1") == "ready", 30), world.timeline()
    assert sorted({name[:-3] for name in probes(world)}) == ["sparkd-probe--g1", "sparkd-probe--g2"]


def stuck(world: World, node: str) -> None:
    """The probe's process there is in the kernel, and SIGKILL does not end it."""
    assert world.run_until(lambda: len(probes(world)) == 2, 3), world.timeline()
    for rank in world.nodes[node].exists():
        rank.stubborn_until = world.now + 1000.0


PROOF_S = LIMITS.kill_proof_s + LIMITS.down_grace_s


@pytest.mark.parametrize("deaf", [True, False])
def test_a_probe_that_sigkill_does_not_end_fails_the_launch_and_is_named(deaf: bool) -> None:
    """Whether it has failed, or passed and does not get out of the driver."""
    world = careful(79)
    world.nodes["b"].deaf = deaf
    assert world.people.up("d1", PAIR)
    stuck(world, "b")
    within_s = LIMITS.collective_s + PROOF_S + 5
    assert world.run_until(lambda: world.phase("d1") == "failed", within_s), world.timeline()
    record = world.record("d1")
    assert record is not None
    assert [one.id for one in record.verdicts][-1] == "UNKILLABLE"
    assert ("COLLECTIVE_ABSENT" in {one.id for one in record.verdicts}) == deaf
    assert "pid 1 (python3) state D" in record.reason
    assert all(rank.spec.kind == "probe" for rank in world.nodes["b"].exists())


def test_nothing_starts_beside_it_and_what_is_waited_for_is_named() -> None:
    world = careful(80)
    world.nodes["b"].deaf = True
    assert world.people.up("d1", PAIR)
    stuck(world, "b")
    within_s = LIMITS.collective_s + PROOF_S + 5
    assert world.run_until(lambda: world.phase("d1") == "failed", within_s), world.timeline()
    world.nodes["b"].deaf = False
    for name in ("d1", "d2"):  # a deployment that never saw that probe no less
        assert world.people.up(name, PAIR)
        world.run(world.now + 3)
        fleet = world.coordinator.fleet
        assert fleet is not None
        waiting = fleet.gangs[name].waiting
        assert waiting is not None, world.timeline()
        assert (world.phase(name), waiting.node) == ("pending", "b")
        assert "reboot it" in waiting.what
        world.people.down(name)
        assert world.run_until(lambda name=name: world.phase(name) == "stopped", 5), world.timeline()
    assert collectives.busy(fleet, "b") == waiting.what.removeprefix("node b: it ")
    assert world.people.up("d1", PAIR)
    world.faults.power_off("b", 1.0)
    assert world.run_until(lambda: world.phase("d1") == "ready", 40), world.timeline()


def test_without_names_another_node_takes_the_place() -> None:
    world = careful(81)
    world.nodes["b"].deaf = True
    assert world.people.up("d1", PAIR)
    stuck(world, "b")
    within_s = LIMITS.collective_s + PROOF_S + 5
    assert world.run_until(lambda: world.phase("d1") == "failed", within_s), world.timeline()
    assert world.people.up("d2", intent(2))
    assert world.run_until(lambda: world.phase("d2") == "ready", 10), world.timeline()
    record = world.record("d2")
    assert record is not None
    assert record.nodes == ("a", "c")


def test_down_during_such_a_probe_ends_and_names_what_is_left() -> None:
    world = careful(82)
    world.nodes["b"].deaf = True
    assert world.people.up("d1", PAIR)
    stuck(world, "b")
    world.people.down("d1")
    assert world.run_until(lambda: world.phase("d1") == "stopped", PROOF_S), world.timeline()
    record = world.record("d1")
    assert record is not None
    assert record.left_on == ("b",)
    assert [one.id for one in record.verdicts] == ["UNKILLABLE"]

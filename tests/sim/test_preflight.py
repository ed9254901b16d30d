"""The preflight of a gang on the real machines: what blocks, what only warns, and what a person waives."""

from dataclasses import replace

from sparkd.records.verdict import Severity
from tests.sim.coordinator import LIMITS
from tests.sim.world import World, intent


def begun(seed: int) -> World:
    world = World(seed)
    world.run(0.3)
    return world


def verdicts(world: World) -> set[tuple[str, str | None, bool]]:
    record = world.record("d1")
    assert record is not None
    return {(one.id, one.node, one.waived) for one in record.verdicts}


def test_a_node_without_the_model_starts_nothing_and_is_named() -> None:
    world = begun(51)
    world.nodes["b"].has_model = False
    assert world.people.up("d1", intent(2, ("a", "b")))
    assert world.run_until(lambda: world.phase("d1") == "failed", 5), world.timeline()
    assert verdicts(world) == {("MODEL_MISSING", "b", False)}
    record = world.record("d1")
    assert record is not None
    assert record.reason == "b: the model is not here"
    assert all(not node.started_names for node in world.nodes.values())
    world.nodes["b"].has_model = True
    assert world.people.up("d1", intent(2, ("a", "b")))
    assert world.run_until(lambda: world.phase("d1") == "ready", 10), world.timeline()
    assert verdicts(world) == set()


def test_what_is_waived_by_name_goes_with_the_gang() -> None:
    world = begun(52)
    world.nodes["b"].has_model = False
    wish = replace(intent(2, ("a", "b")), forced=("MODEL_MISSING",))
    assert world.people.up("d1", wish)
    assert world.run_until(lambda: world.phase("d1") == "ready", 10), world.timeline()
    assert verdicts(world) == {("MODEL_MISSING", "b", True)}


def test_another_id_waives_nothing() -> None:
    world = begun(53)
    world.nodes["b"].has_model = False
    assert world.people.up("d1", replace(intent(2, ("a", "b")), forced=("MEMORY_FIT",)))
    assert world.run_until(lambda: world.phase("d1") == "failed", 5), world.timeline()


def test_a_node_that_does_not_know_itself_is_told_of_and_starts() -> None:
    world = begun(54)
    world.nodes["b"].knows_itself = False
    assert world.people.up("d1", intent(2, ("a", "b")))
    assert world.run_until(lambda: world.phase("d1") == "ready", 5), world.timeline()
    assert verdicts(world) == {("FACTS_UNKNOWN", "b", False)}


def test_a_node_that_is_mute_about_itself_is_waited_for_and_then_starts() -> None:
    world = begun(55)
    world.nodes["b"].mute = True
    assert world.people.up("d1", intent(2, ("a", "b")))
    world.run(world.now + LIMITS.facts_s / 2)
    fleet = world.coordinator.fleet
    assert fleet is not None
    waiting = fleet.gangs["d1"].waiting
    assert waiting is not None
    assert (waiting.what, waiting.node, waiting.then) == ("facts check", "b", "it goes on without")
    assert world.run_until(lambda: world.phase("d1") == "ready", LIMITS.facts_s + 5), world.timeline()
    record = world.record("d1")
    assert record is not None
    assert [(one.id, one.severity) for one in record.verdicts] == [("FACTS_UNKNOWN", Severity.WARN)]


def test_a_preflight_that_blocks_after_a_fall_says_so_and_starts_nothing_until_it_passes() -> None:
    """The files went away while it served, as a mount does: nobody is there to type `up` again."""
    world = begun(56)
    assert world.people.up("d1", intent(2, ("a", "b")))
    assert world.run_until(lambda: world.phase("d1") == "ready", 5)
    world.nodes["b"].has_model = False
    world.faults.kill_rank("d1", 1)
    world.run(world.now + 20)
    record = world.record("d1")
    assert record is not None
    assert (record.phase, record.generation) == ("recovering", 1), world.timeline()
    assert "b: the model is not here" in record.reason
    assert ("MODEL_MISSING", "b", False) in verdicts(world)
    started = [name for node in world.nodes.values() for name in node.started_names]
    assert sorted(started) == ["sparkd-d1-g1-r0", "sparkd-d1-g1-r1"]
    world.nodes["b"].has_model = True
    assert world.run_until(lambda: world.phase("d1") == "ready", 30), world.timeline()


def test_one_mute_node_does_not_hide_another_that_is_silent() -> None:
    """Found by seed 271: a question that is given up stood before one that must be answered."""
    world = begun(57)
    world.nodes["a"].mute = True
    assert world.people.up("d1", intent(2, ("a", "b")))
    world.nodes["b"].disk.full = True  # its answers cannot be kept, so they are never told
    assert world.run_until(lambda: world.phase("d1") == "failed", LIMITS.preflight_s + 5), world.timeline()
    assert verdicts(world) == {("PREFLIGHT_SILENT", "b", False)}


def test_the_ranks_do_not_meet_at_the_port_of_their_api() -> None:
    """Case 28: both were free a moment ago, and would be one and the same."""
    world = begun(58)
    assert world.people.up("d1", intent(2, ("a", "b")))
    assert world.run_until(lambda: world.phase("d1") == "ready", 5)
    record = world.record("d1")
    assert record is not None
    (first_choice,) = record.rendezvous_ports
    wish = intent(2, ("a", "b"))
    world = begun(58)
    assert world.people.up("d1", replace(wish, profile={**wish.profile, "api": {"port": first_choice}}))
    assert world.run_until(lambda: world.phase("d1") == "ready", 5), world.timeline()
    record = world.record("d1")
    assert record is not None
    assert record.api_port == first_choice
    assert first_choice not in record.rendezvous_ports

"""Single stories through the real machines: what a person would see, step by step."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from sparkd.fleet.nodes import Node
from sparkd.gang.record import GangRecord
from sparkd.gang.state import Answers, Launch
from sparkd.records.verdict import Severity, Verdict
from tests.sim.world import LIMITS, World, intent


def ready(world: World, name: str = "d1", tp: int = 2) -> None:
    world.run(0.3)
    assert world.people.up(name, intent(tp))
    assert world.run_until(lambda: world.phase(name) == "ready", 20), world.timeline()


def generation(world: World, name: str = "d1") -> int:
    record = world.record(name)
    assert record is not None
    return record.generation


def port(world: World) -> int:
    record = world.record("d1")
    assert record is not None
    return record.rendezvous_ports[-1]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("signal", [9, 6, None])
def test_a_fall_of_any_rank_brings_the_next_generation_on_a_new_port(rank: int, signal: int | None) -> None:
    world = World(1)
    ready(world)
    before = port(world)
    world.faults.kill_rank("d1", rank, signal)
    assert world.run_until(lambda: world.phase("d1") == "recovering", 1)
    assert world.run_until(lambda: world.phase("d1") == "ready", 20), world.timeline()
    assert generation(world) == 2
    assert port(world) != before
    assert {r.spec.generation for r in world.living("d1")} == {2}


def test_the_budget_ends_a_gang_that_falls_again_and_again() -> None:
    world = World(2)
    ready(world)
    for fall in range(4):
        assert world.run_until(lambda: world.phase("d1") == "ready", 30), world.timeline()
        world.faults.kill_rank("d1", 1)
        assert world.run_until(lambda: world.phase("d1") != "ready", 1)
        assert generation(world) == fall + 1
    assert world.run_until(lambda: world.phase("d1") == "failed", 30), world.timeline()
    record = world.record("d1")
    assert record is not None
    assert record.fall is not None
    assert (record.fall.rank, record.fall.signal, record.falls) == (1, 9, 4)
    assert "gave up" in record.reason
    world.run(world.now + 5)
    assert world.living("d1") == []


def test_a_frozen_engine_is_ended_and_started_anew() -> None:
    world = World(3)
    ready(world)
    world.faults.freeze_rank("d1", 1)
    assert world.run_until(lambda: world.phase("d1") == "recovering", 5)
    assert world.run_until(lambda: world.phase("d1") == "ready", 20), world.timeline()
    assert generation(world) == 2


def test_down_while_the_back_off_runs() -> None:
    world = World(4)
    ready(world)
    world.faults.kill_rank("d1", 0)
    assert world.run_until(lambda: world.phase("d1") == "recovering", 1)
    assert world.people.down("d1")
    assert world.people.down("d1")
    assert world.run_until(lambda: world.phase("d1") == "stopped", 20), world.timeline()
    world.run(world.now + 10)
    assert world.phase("d1") == "stopped"
    assert world.living("d1") == []


def test_a_coordinator_that_dies_costs_no_rank() -> None:
    world = World(5)
    ready(world)
    names = sorted(rank.spec.name for rank in world.living("d1"))
    world.kill_coordinator("in the test")
    world.run(world.now + 6)
    assert world.phase("d1") == "ready"
    assert sorted(rank.spec.name for rank in world.living("d1")) == names
    assert world.coordinator.fleet is not None
    assert world.coordinator.fleet.term == 2


def test_agents_that_die_cost_no_rank_and_lose_no_fall() -> None:
    world = World(6)
    ready(world)
    world.faults.kill_agent("a", 0.5)
    world.faults.kill_agent("b", 0.5)
    world.run(world.now + 3)
    assert world.phase("d1") == "ready"
    assert generation(world) == 1
    world.faults.kill_agent("b", 1.0)
    world.run(world.now + 0.2)
    world.nodes["b"].ranks["sparkd-d1-g1-r1"].state = "gone"  # it dies while nobody looks
    assert world.run_until(lambda: world.phase("d1") == "recovering", 5), world.timeline()
    assert world.run_until(lambda: world.phase("d1") == "ready", 20), world.timeline()


def test_a_silent_node_does_not_end_a_gang_that_serves() -> None:
    """Invariant 6: the pulse decides, not the control connection."""
    world = World(7)
    ready(world)
    world.faults.cut_off("b")
    world.run(world.now + 15)
    assert world.phase("d1") == "ready", world.timeline()
    fleet = world.coordinator.fleet
    assert fleet is not None
    assert fleet.gangs["d1"].conditions == ("unsupervised",)
    world.faults.heal()
    world.run(world.now + 8)
    assert world.phase("d1") == "ready"
    assert fleet is not world.coordinator.fleet
    assert generation(world) == 1


def test_a_node_that_loses_power_is_known_lost_in_6_s_and_a_spare_takes_its_place() -> None:
    world = World(17)
    ready(world)
    world.faults.power_off("b", None)
    begun = world.now
    assert world.run_until(lambda: world.phase("d1") == "recovering", 10), world.timeline()
    assert 4.0 <= world.now - begun <= 6.5
    assert world.run_until(lambda: world.phase("d1") == "ready", 20), world.timeline()
    record = world.record("d1")
    assert record is not None
    assert record.nodes == ("a", "c"), "rank 0 and the endpoint do not move"
    assert record.fall is not None
    assert record.fall.cause == "NODE_LOST"
    world.faults.power_on("b")
    world.run(world.now + 5)
    assert world.nodes["b"].exists() == []
    assert world.phase("d1") == "ready"


def test_a_node_whose_last_beats_were_late_is_known_lost_all_the_same() -> None:
    """It computed after its last word, and died before its silence could be told from a lost connection."""
    world = World(17)
    ready(world)
    world.faults.cut_off("b")
    world.run(world.now + 3)
    world.faults.power_off("b", None)
    begun = world.now
    assert world.run_until(lambda: world.phase("d1") == "recovering", 10), world.timeline()
    assert world.now - begun <= 6.0
    record = world.record("d1")
    assert record is not None
    assert record.fall is not None
    assert record.fall.cause == "NODE_LOST"


def test_without_a_spare_the_gang_waits_for_the_lost_node_by_name() -> None:
    world = World(18, ("a", "b"))
    ready(world)
    world.faults.power_off("b", None)
    assert world.run_until(lambda: world.phase("d1") == "pending", 15), world.timeline()
    world.run(world.now + 30)
    fleet = world.coordinator.fleet
    assert fleet is not None
    waiting = fleet.gangs["d1"].waiting
    assert waiting is not None
    assert waiting.node == "b"
    assert waiting.deadline is None
    world.faults.power_on("b")
    assert world.run_until(lambda: world.phase("d1") == "ready", 20), world.timeline()


def test_the_head_s_node_cut_off_is_judged_by_the_endpoint() -> None:
    """Rank 0's agent is away: the coordinator's own pulse proves, and later fails to prove, the gang."""
    world = World(19)
    ready(world)
    world.faults.cut_off("a")
    world.run(world.now + 50)
    assert world.phase("d1") == "ready", world.timeline()
    world.faults.freeze_rank("d1", 1)
    assert world.run_until(lambda: world.phase("d1") == "recovering", 45), world.timeline()


def test_a_coordinator_that_is_cut_off_ends_nothing_and_claims_nothing() -> None:
    """All control links are gone and the fabric is healthy (invariants 2 and 6)."""
    world = World(23)
    ready(world)
    world.faults.isolate()
    world.run(world.now + 20)
    assert world.phase("d1") == "ready", world.timeline()
    world.run(world.now + 40)
    assert world.phase("d1") == "warming", "nobody can say that it is ready any more"
    world.run(world.now + 2000)
    assert len(world.living("d1")) == 2, world.timeline()
    world.faults.heal()
    assert world.run_until(lambda: world.phase("d1") == "ready", 10), world.timeline()
    assert generation(world) == 1


def test_a_head_that_nobody_reaches_is_lost() -> None:
    world = World(24)
    ready(world)
    world.faults.power_off("a", None)
    begun = world.now
    assert world.run_until(lambda: world.phase("d1") == "recovering", 10), world.timeline()
    assert 4.0 <= world.now - begun <= 7.5
    assert world.run_until(lambda: world.phase("d1") == "ready", 20), world.timeline()
    record = world.record("d1")
    assert record is not None
    assert record.nodes == ("c", "b")


def test_a_head_cut_off_from_us_alone_is_not_lost() -> None:
    """Its follower's node still reaches its rendezvous: the pulse that we could not deliver says nothing."""
    world = World(25)
    ready(world)
    world.faults.cut_off("a", deep=True)
    world.run(world.now + 25)
    assert world.phase("d1") == "ready", world.timeline()
    world.faults.heal()
    world.run(world.now + 10)
    assert world.phase("d1") == "ready"
    assert generation(world) == 1


def test_memory_that_comes_back_late_is_waited_for() -> None:
    world = World(20)
    ready(world)
    world.nodes["b"].trapped_until = world.now + 6.0
    world.faults.kill_rank("d1", 1)
    assert world.run_until(lambda: world.phase("d1") == "recovering", 1)
    world.run(world.now + 4)
    fleet = world.coordinator.fleet
    assert fleet is not None
    waiting = fleet.gangs["d1"].waiting
    assert waiting is not None
    assert "memory" in waiting.what
    assert world.run_until(lambda: world.phase("d1") == "ready", 20), world.timeline()


def test_memory_that_never_comes_back_needs_a_reboot() -> None:
    world = World(21)
    ready(world)
    world.nodes["b"].trapped_until = 1e9
    world.faults.kill_rank("d1", 1)
    assert world.run_until(lambda: world.phase("d1") == "failed", 30), world.timeline()
    record = world.record("d1")
    assert record is not None
    assert "reboot needed on b" in record.reason
    assert [v.id for v in record.verdicts if v.node == "b"][-1] == "TRAPPED_UMA"


def test_a_stalled_coordinator_calls_no_node_silent() -> None:
    world = World(22)
    ready(world)
    world.now += 20.0  # nothing at all happened in this process for 20 s
    world.run(world.now + 0.3)
    fleet = world.coordinator.fleet
    assert fleet is not None
    assert {node.state for node in fleet.nodes.values()} <= {"alive", "suspect"}
    assert world.phase("d1") == "ready"


def test_two_deployments_never_share_a_node() -> None:
    world = World(8)
    ready(world, "d1")
    assert world.people.up("d2", intent(2))
    world.run(world.now + 5)
    record = world.record("d2")
    assert record is not None
    assert record.phase == "pending"
    fleet = world.coordinator.fleet
    assert fleet is not None
    waiting = fleet.gangs["d2"].waiting
    assert waiting is not None
    assert "d1" in waiting.what
    assert world.people.down("d1")
    assert world.run_until(lambda: world.phase("d2") == "ready", 20), world.timeline()


def test_a_disk_that_cannot_take_the_intent_starts_nothing() -> None:
    world = World(9)
    world.run(0.3)
    world.nodes["b"].disk.full = True
    assert world.people.up("d1", intent(2, ("a", "b")))
    world.run(world.now + LIMITS.preflight_s + 5)
    assert world.nodes["b"].started_names == []
    assert world.phase("d1") != "ready"


def judged_by(world: World, judge: Callable[[Launch], Launch]) -> None:
    """From now on the preflight finds this."""
    fleet = world.coordinator.fleet
    assert fleet is not None
    before = fleet.planner
    assert before is not None

    def plan(record: GangRecord, nodes: tuple[Node, ...], answers: Mapping[str, Answers]) -> Launch:
        return judge(before(record, nodes, answers))

    world.coordinator.fleet = replace(fleet, planner=plan)


def test_what_blocks_the_launch_after_a_fall_is_waited_for() -> None:
    """A switch that starts anew, a root that is not mounted yet: up means up until down (design §3)."""
    world = World(26)
    ready(world)
    over = world.now + 90
    block = Verdict("FABRIC_ABSENT", Severity.BLOCK, "the nodes share no network", node="b")
    judged_by(world, lambda launch: replace(launch, verdicts=(block,) if world.now < over else ()))
    world.faults.kill_rank("d1", 1)
    world.run(world.now + 60)
    fleet = world.coordinator.fleet
    record = world.record("d1")
    assert fleet is not None
    assert record is not None
    assert record.phase == "recovering", world.timeline()
    assert "the nodes share no network" in record.reason
    assert record.verdicts == (block,)
    waiting = fleet.gangs["d1"].waiting
    assert waiting is not None
    assert waiting.what == "what blocks the next launch to pass"
    assert world.run_until(lambda: world.phase("d1") == "ready", 120), world.timeline()
    assert generation(world) == 2
    record = world.record("d1")
    assert record is not None
    assert record.falls == 1


def test_what_blocks_for_ever_fails_at_last() -> None:
    world = World(27)
    ready(world)
    block = Verdict("FABRIC_ABSENT", Severity.BLOCK, "the nodes share no network")
    judged_by(world, lambda launch: replace(launch, verdicts=(block,)))
    world.faults.kill_rank("d1", 1)
    assert world.run_until(lambda: world.phase("d1") == "failed", 3 * LIMITS.boot_max_s), world.timeline()
    assert world.living("d1") == []


def test_a_planner_that_stumbles_ends_its_launch_and_not_the_coordinator() -> None:
    def stumble(launch: Launch) -> Launch:
        raise TypeError("unsupported format string passed to NoneType.__format__")

    world = World(28)
    world.run(0.3)
    judged_by(world, stumble)
    assert world.people.up("d1", intent(2))
    assert world.run_until(lambda: world.phase("d1") == "failed", 20), world.timeline()
    record = world.record("d1")
    assert record is not None
    assert [verdict.id for verdict in record.verdicts] == ["PREFLIGHT_ERROR"]
    assert "TypeError" in record.reason

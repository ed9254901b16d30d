"""A rule with a fault: it is one deployment's, and told; nothing of a half decision is seen by anybody."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from sparkd.clock import Instant
from sparkd.coordinator import view
from sparkd.fleet.nodes import Node
from sparkd.fleet.state import Fleet
from sparkd.gang import machine as gang_machine
from sparkd.gang.state import Complain, Down, Gang, Restart, Say, Tick
from sparkd.gang.state import World as Seen
from sparkd.records.defaults import DEFAULTS
from sparkd.records.intent import Intent
from tests.sim.world import World, intent


class Broken(Mapping[str, Node]):
    """What a rule looks at, and cannot: as if the rule were wrong."""

    def __getitem__(self, name: str) -> Node:
        raise ZeroDivisionError(f"looking at {name}")

    def __iter__(self) -> Iterator[str]:
        raise ZeroDivisionError("looking at all")

    def __len__(self) -> int:
        return 1


def faulty(tp: int, nodes: tuple[str, ...]) -> Intent:
    """As an older sparkd may have stored it: a fall of it cannot be judged."""
    wish = intent(tp, nodes)
    return replace(wish, profile={**wish.profile, "restart": {"budget": "many"}})


def two_ready() -> World:
    world = World(51)
    world.bears_faults = True
    world.run(0.3)
    assert world.people.up("bad", faulty(2, ("a", "b")))
    assert world.people.up("good", intent(1, ("c",)))
    for name in ("bad", "good"):
        assert world.run_until(lambda name=name: world.phase(name) == "ready", 20), world.timeline()
    return world


def fleet_of(world: World) -> Fleet:
    assert world.coordinator.fleet is not None
    return world.coordinator.fleet


def fall(world: World, node: str, name: str) -> None:
    world.nodes[node].rank_falls(name, "it was killed", 9)


def test_others_go_on_and_it_is_left_as_it_was() -> None:
    world = two_ready()
    before = fleet_of(world).gangs["bad"].record
    fall(world, "b", "sparkd-bad-g1-r1")
    assert world.run_until(lambda: fleet_of(world).gangs["bad"].fault is not None, 5), world.timeline()
    fall(world, "c", "sparkd-good-g1-r0")
    assert world.run_until(lambda: world.phase("good") == "recovering", 5), world.timeline()
    assert world.run_until(lambda: world.phase("good") == "ready", 20), world.timeline()
    world.run(world.now + 3 * DEFAULTS.fault_over_s)
    after = fleet_of(world).gangs["bad"].record
    assert (after.phase, after.generation, after.falls) == (before.phase, 1, 0)
    assert len([line for line in world.story if "bad fault" in line]) == 1, "told once, not with every tick"

    told = view.deployment_status(fleet_of(world), fleet_of(world).gangs["bad"], Instant(world.now, 0.0), {})
    assert told.phase != "ready"
    assert told.verdicts[0].id == "DECISION_FAILED"
    assert "'many'" in told.reason
    assert world.people.down("bad")
    assert world.run_until(lambda: world.phase("bad") == "stopped", 20), world.timeline()
    assert not world.living("bad")
    world.run(world.now + 2 * DEFAULTS.fault_over_s)
    assert fleet_of(world).gangs["bad"].fault is None
    assert "over: decisions are made again" in world.timeline()


def ready_gang() -> tuple[Gang, Seen, Instant]:
    world = two_ready()
    gang = fleet_of(world).gangs["good"]
    return gang, Seen(fleet_of(world).nodes), Instant(world.now, world.now)


def test_nothing_of_the_decision_is_taken() -> None:
    gang, seen, now = ready_gang()
    after, commands = gang_machine.step_apart(gang, Tick(), replace(seen, nodes=Broken()), now)
    assert replace(after, fault=None) == gang
    said, complaint = commands
    assert isinstance(said, Say)
    assert "ZeroDivisionError: looking at" in said.reason
    assert isinstance(complaint, Complain)
    again, commands = gang_machine.step_apart(after, Tick(), replace(seen, nodes=Broken()), now)
    assert (again, commands) == (after, ())


def test_a_fault_counts_as_over_after_a_while() -> None:
    gang, seen, now = ready_gang()
    gang, _ = gang_machine.step_apart(gang, Tick(), replace(seen, nodes=Broken()), now)
    gang, commands = gang_machine.step_apart(gang, Tick(), seen, now)
    assert gang.fault is not None, "the next event may show it again"
    later = replace(now, mono=now.mono + DEFAULTS.fault_over_s)
    gang, commands = gang_machine.step_apart(gang, Tick(), seen, later)
    assert gang.fault is None
    assert [one.kind for one in commands if isinstance(one, Say)][-1:] == ["fault"]


def test_who_wants_it_gone_needs_no_rule() -> None:
    gang, seen, now = ready_gang()
    assert gang_machine.wanted(gang)
    after, _ = gang_machine.step_apart(gang, Down(), replace(seen, nodes=Broken()), now)
    assert (after.record.phase, after.record.desired) == ("stopping", "down")
    assert after.record.serial == gang.record.serial + 1
    assert not gang_machine.wanted(after), "no rank waits for a decision"
    assert after.fault is not None


def test_who_asks_for_more_hears_of_it() -> None:
    gang, seen, now = ready_gang()
    with pytest.raises(ZeroDivisionError):
        gang_machine.step_apart(gang, Restart(gang.record.generation), replace(seen, nodes=Broken()), now)

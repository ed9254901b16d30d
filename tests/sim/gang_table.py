"""The table of phases x events, read off the real machine: `python -m tests.sim.gang_table > docs/gang.md`.

Each cell is one step of the machine from a cluster that was brought into that phase.
"""

import sys
from collections.abc import Callable
from dataclasses import replace

from sparkd.clock import Instant
from sparkd.errors import SparkdError
from sparkd.fleet import machine as fleet_machine
from sparkd.fleet.state import Fleet
from sparkd.records.report import ProbeReport, RankReport
from sparkd.records.status import Phase
from tests.sim.world import LIMITS, World, intent

NAME = "d"
PHASES: tuple[Phase, ...] = (
    "pending",
    "preflight",
    "launching",
    "loading",
    "warming",
    "ready",
    "recovering",
    "stopping",
    "stopped",
    "failed",
)

Act = Callable[[World, Fleet], Fleet]


def world_in(phase: Phase) -> World:
    """A cluster of two nodes and one deployment of two ranks, in that phase."""
    world = World(1, ("a", "b"))
    world.run(0.3)
    if phase == "pending":
        world.faults.power_off("b", None)
        world.run(world.now + 8)
    world.people.up(NAME, intent(2))
    if phase in ("pending", "preflight"):
        return world
    if phase in ("launching", "loading", "warming"):
        world.run_until(lambda: world.phase(NAME) == "launching", 5)
        _as_if(world, phase)
        return world
    world.run_until(lambda: world.phase(NAME) == "ready", 5)
    if phase == "recovering":
        world.faults.kill_rank(NAME, 1)
        world.run_until(lambda: world.phase(NAME) == "recovering", 5)
    elif phase in ("stopping", "stopped"):
        world.people.down(NAME)
        world.run_until(lambda: world.phase(NAME) == phase, 5)
    elif phase == "failed":
        for _ in range(5):
            world.run_until(lambda: world.phase(NAME) in ("ready", "failed"), 30)
            world.faults.kill_rank(NAME, 1)
            world.run(world.now + 1)
        world.run_until(lambda: world.phase(NAME) == "failed", 30)
    return world


def _as_if(world: World, phase: Phase) -> None:
    fleet = world.coordinator.fleet
    assert fleet is not None
    gang = fleet.gangs[NAME]
    changed = replace(gang, record=replace(gang.record, phase=phase))
    world.coordinator.records[NAME] = changed.record
    world.coordinator.fleet = replace(fleet, gangs={**fleet.gangs, NAME: changed})


# Events. ------------------------------------------------------------------------------------------------


def _now(world: World, after: float = 0.0) -> Instant:
    return Instant(world.now + after, world.now + after)


def _up_same(world: World, fleet: Fleet) -> Fleet:
    return fleet_machine.up(fleet, NAME, intent(2), _now(world), LIMITS)[0]


def _up_other(world: World, fleet: Fleet) -> Fleet:
    return fleet_machine.up(fleet, NAME, intent(1), _now(world), LIMITS)[0]


def _down(world: World, fleet: Fleet) -> Fleet:
    return fleet_machine.down(fleet, NAME, _now(world), LIMITS)[0]


def _restart(world: World, fleet: Fleet) -> Fleet:
    generation = fleet.gangs[NAME].record.generation
    return fleet_machine.restart(fleet, NAME, generation, _now(world), LIMITS)[0]


def _reported(world: World, fleet: Fleet, rank: int, change: Callable[[RankReport], RankReport]) -> Fleet:
    record = fleet.gangs[NAME].record
    if not record.specs:
        return fleet
    node = fleet.nodes[record.nodes[rank]]
    name = record.specs[rank].name
    report = node.reports.get(name, RankReport(name, "running"))
    node = replace(node, reports={**node.reports, name: change(report)})
    fleet = replace(fleet, nodes={**fleet.nodes, node.id: node})
    return fleet_machine.tick(fleet, _now(world), LIMITS)[0]


def _falls(world: World, fleet: Fleet) -> Fleet:
    return _reported(world, fleet, 1, lambda r: replace(r, state="fallen", fell="ended by signal 9"))


def _frozen(world: World, fleet: Fleet) -> Fleet:
    probe = ProbeReport(api_up=True, warmed=True, proof_age_s=30.0, wedged="no answer")
    return _reported(world, fleet, 0, lambda r: replace(r, probe=probe))


def _wrong_canary(world: World, fleet: Fleet) -> Fleet:
    probe = ProbeReport(api_up=True, failed="it said 85")
    return _reported(world, fleet, 0, lambda r: replace(r, probe=probe))


def _time(world: World, seconds: float) -> Fleet:
    world.run(world.now + seconds)
    assert world.coordinator.fleet is not None
    return world.coordinator.fleet


def _node_lost(world: World, _: Fleet) -> Fleet:
    world.faults.power_off("b", None)
    return _time(world, 6.5)


def _no_progress(world: World, fleet: Fleet) -> Fleet:
    """All nodes speak, no rank gets anywhere, for longer than any phase allows."""
    far = LIMITS.warming_s + 5.0
    nodes = {}
    for node in fleet.nodes.values():
        reports = {name: replace(r, progress_age_s=far) for name, r in node.reports.items()}
        heard = world.now + far if node.state == "alive" else node.heard
        nodes[node.id] = replace(node, heard=heard, reports=reports)
    fleet = replace(fleet, nodes=nodes, ticked=world.now + far)
    return fleet_machine.tick(fleet, _now(world, far), LIMITS)[0]


def _coordinator_dies(world: World, _: Fleet) -> Fleet:
    world.kill_coordinator("in the table")
    return _time(world, 1.5)


EVENTS: tuple[tuple[str, Act], ...] = (
    ("up, same", _up_same),
    ("up, other", _up_other),
    ("down", _down),
    ("restart", _restart),
    ("a rank falls", _falls),
    ("frozen", _frozen),
    ("wrong canary", _wrong_canary),
    ("no progress", _no_progress),
    ("node lost", _node_lost),
    ("coordinator dies", _coordinator_dies),
)


def cell(phase: Phase, act: Act) -> str:
    world = world_in(phase)
    assert world.phase(NAME) == phase, (phase, world.timeline())
    fleet = world.coordinator.fleet
    assert fleet is not None
    serial = fleet.gangs[NAME].record.serial
    try:
        after = act(world, fleet).gangs[NAME].record
    except SparkdError as error:
        return f"({error.code})"
    if after.phase == phase:
        if after.serial == serial:
            return "="
        return f"= then {after.ending}" if phase == "stopping" else "= noted"
    return f"{after.phase} ({after.ending})" if after.phase == "stopping" else after.phase


HEAD = """# The gang machine: phases and events

Generated by `python -m tests.sim.gang_table > docs/gang.md` from the machine itself; a test compares. Each
cell is what one event makes of a deployment of two ranks on two nodes without a spare: `=` nothing changes,
`= noted` only what is wished, `(code)` the request is refused. Rules look at levels, so an event that comes
twice or late is the `=` of the phase that it finds.
"""


def table() -> str:
    names = [name for name, _ in EVENTS]
    rows = [["phase", *names]] + [[phase, *(cell(phase, act) for _, act in EVENTS)] for phase in PHASES]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["| " + " | ".join(w.ljust(widths[i]) for i, w in enumerate(row)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return HEAD + "\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table())

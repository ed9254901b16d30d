"""From a seed to a schedule: what people ask, what breaks, and what must hold once nothing breaks any more.

python -m tests.sim.schedule SEED          plays one seed and prints its timeline
python -m tests.sim.schedule FIRST LAST    searches, prints the seeds that fail
"""

import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

from sparkd.records.verdict import Severity
from tests.sim.world import LIMITS, World, intent

CHUNK = 200
FAULTS_S = 12.0
CALM_S = 60.0
DEPLOYMENTS = ("d1", "d2")
PROBED = frozenset({"COLLECTIVE_ABSENT", "COLLECTIVE_FAILED", "FABRIC_UNPROVEN"})
FAULTS = (
    *("rank", "rank", "freeze", "agent", "agent", "power", "flap"),
    *("cut", "one-way", "coordinator", "crash", "slow", "disk"),
    *("copy", "amnesia", "restore", "isolate", "rival"),
)


def play(seed: int) -> World:
    """Two deployments on three nodes, faults for a while, then calm; the oracle has looked throughout."""
    world = World(seed)
    rng = random.Random(seed * 7919 + 1)
    # Chance of its own: the schedules of faults stay what they were before nodes were asked for facts.
    shy = random.Random(seed * 104729 + 1)
    for node in world.nodes.values():
        node.mute, node.knows_itself = shy.random() < 0.1, shy.random() < 0.9
    careful = random.Random(seed * 15485863 + 1)
    world.coordinator.proves = careful.random() < 0.5
    for node in world.nodes.values():
        node.has_torch, node.deaf = careful.random() < 0.9, careful.random() < 0.05
    world.deaf = any(node.deaf for node in world.nodes.values())
    for _ in range(rng.randint(2, 9)):
        at = rng.uniform(0.3, FAULTS_S)
        world.at(at, _fault(world, rng))
    for name in DEPLOYMENTS:
        for _ in range(rng.randint(1, 3)):
            world.at(rng.uniform(0.2, FAULTS_S), _ask(world, rng, name))
    world.duplicates = rng.choice((0.0, 0.15))
    world.run(FAULTS_S)
    _calm(world)
    world.run(world.now + LIMITS.lease_s + 2.0)  # an agent that talked to nobody notices after a lease
    settled = world.run_until(lambda: all(_rests(world, name) for name in DEPLOYMENTS), CALM_S)
    if not settled and not world.violations:
        for name in DEPLOYMENTS:
            if not _rests(world, name):
                world.violated(4, f"{name} does not come to rest: {world.phase(name)}")
    if not world.violations:
        world.run(world.now + 2.0)
        _check_rest(world)
    return world


def _ask(world: World, rng: random.Random, name: str) -> Callable[[], None]:
    what = rng.choice(("up", "up", "up", "down", "restart"))
    size = rng.choice((1, 2, 2))

    def act() -> None:
        if what == "up":
            world.people.up(name, intent(size))
        elif what == "down":
            world.people.down(name)
        else:
            record = world.record(name)
            if record is not None:
                world.people.restart(name, record.generation)

    return act


def _fault(world: World, rng: random.Random) -> Callable[[], None]:
    node = rng.choice(tuple(world.nodes))
    kind = rng.choice(FAULTS)
    name, rank = rng.choice(DEPLOYMENTS), rng.choice((0, 1))
    seconds = rng.uniform(0.2, 8.0)
    moment = rng.choice(("before-commit", "after-commit"))
    misled = tuple(name for name in world.nodes if rng.random() < 0.5)
    stubborn, deep = rng.random() < 0.35, rng.random() < 0.4

    def act() -> None:
        match kind:
            case "rank":
                _kill(world, name, rank, stubborn=stubborn)
            case "freeze":
                world.faults.freeze_rank(name, rank)
            case "agent":
                world.faults.kill_agent(node, seconds)
            case "power":
                world.faults.power_off(node, seconds)
            case "cut":
                world.faults.cut_off(node, deep=deep)
                world.at(world.now + seconds, lambda: world.faults.mend(node))
            case "one-way":
                to = rng.random() < 0.5
                world.faults.cut_off(node, to=to, back=not to, deep=deep)
                world.at(world.now + seconds, lambda: world.faults.mend(node))
            case "rival":
                world.faults.add_rival(foreign=deep, misled=misled)
                world.at(world.now + seconds * 2, world.faults.end_rival)
            case "isolate":
                world.faults.isolate()
                world.at(world.now + seconds, world.faults.heal)
            case "flap":
                for turn in range(6):
                    world.at(world.now + turn * 1.9, lambda: _kill(world, name, rank, stubborn=stubborn))
            case "copy":
                world.faults.copy_database()
            case "amnesia":
                world.faults.lose_database()
            case "restore":
                world.faults.restore_copy()
            case "coordinator":
                world.kill_coordinator("by the schedule")
            case "crash":
                world.crash_next = moment
            case "slow":
                world.duplicates = rng.choice((0.0, 0.1, 0.3))
                world.delay, world.loss = rng.choice((0.05, 0.2, 0.4)), rng.choice((0.0, 0.05, 0.2))
            case "disk":
                world.nodes[node].disk.full = True
                world.tell(f"{node}: disk full")
                world.at(world.now + seconds, lambda: setattr(world.nodes[node].disk, "full", False))

    return act


def _kill(world: World, name: str, rank: int, *, stubborn: bool) -> None:
    """`stubborn`: what is left of the gang takes seconds to end, as if stuck in the kernel."""
    if stubborn:
        for sim in world.living(name):
            sim.stubborn_until = world.now + 3.0
    world.faults.kill_rank(name, rank)


def _calm(world: World) -> None:
    world.faults.heal()
    world.faults.end_rival()
    world.crash_next = None
    for name, node in world.nodes.items():
        node.disk.full = node.deaf = False
        if not node.powered:
            world.faults.power_on(name)
        if node.core is None:
            world.faults.agent_back(name)
    world.coordinator_back()


def _rests(world: World, name: str) -> bool:
    """Ready, ended, or waiting for a named node or person."""
    record = world.record(name)
    if record is None:
        return world.asked.get(name, "unknown") == "unknown" and world.coordinator.fleet is not None
    if record.phase in ("ready", "stopped", "failed"):
        return True
    fleet = world.coordinator.fleet
    assert fleet is not None
    waiting = fleet.gangs[name].waiting
    return record.phase == "pending" and waiting is not None and waiting.deadline is None


def _check_rest(world: World) -> None:
    probes = [
        rank.spec.name for node in world.nodes.values() for rank in node.exists() if rank.spec.kind == "probe"
    ]
    if probes:
        world.violated(3, f"nothing is being launched and {probes} live")
    for name in DEPLOYMENTS:
        record = world.record(name)
        wish = world.asked.get(name)
        living = world.living(name)
        if record is None:
            if wish in ("up", "down"):
                world.violated(5, f"{name}: {wish} was acknowledged and is forgotten")
            continue
        if wish == "down" and record.phase != "stopped":
            world.violated(5, f"{name} was asked to stop and is {record.phase}")
        if wish == "up" and record.desired != "up":
            world.violated(5, f"{name} was asked for and is desired {record.desired}")
        if record.phase in ("stopped", "failed") and living:
            world.violated(3, f"{name} is {record.phase} and {[r.spec.name for r in living]} live")
        blocked = {one.id for one in record.verdicts if one.severity is Severity.BLOCK}
        if blocked & PROBED and not world.deaf:
            world.violated(
                4, f"{name} is {record.phase} by {blocked}, and all nodes can sum up or cannot try"
            )
        if record.phase == "ready":
            generations = {r.spec.generation for r in living}
            if generations != {record.generation} or len(living) != len(record.specs):
                world.violated(1, f"{name} is ready and {[r.spec.name for r in living]} live")


def main(words: list[str]) -> int:
    if len(words) == 1:
        world = play(int(words[0]))
        sys.stdout.write(world.timeline() + "\n")
        return 1 if world.violations else 0
    first, last = int(words[0]), int(words[1])
    begun, seconds, broken = time.monotonic(), [], 0
    chunks = [range(start, min(start + CHUNK, last)) for start in range(first, last, CHUNK)]
    with ProcessPoolExecutor() as pool:
        for found in pool.map(_search, chunks):
            for seed, took, violation in found:
                seconds.append(took)
                if violation:
                    broken += 1
                    sys.stdout.write(f"seed {seed}: {violation}\n")
                    sys.stdout.flush()
    seconds.sort()
    median = seconds[len(seconds) // 2] * 1000
    took = time.monotonic() - begun
    sys.stdout.write(f"{last - first} seeds, {broken} failed, {took:.0f} s, median {median:.1f} ms a seed\n")
    return 1 if broken else 0


def _search(seeds: range) -> list[tuple[int, float, str]]:
    """(seed, seconds of processor time, violation) of each seed; a crash of the machine is a finding too."""
    found = []
    for seed in seeds:
        started = time.process_time()
        try:
            violations = play(seed).violations
        except Exception as error:  # noqa: BLE001 - see above
            violations = [f"{type(error).__name__}: {error}"]
        found.append((seed, time.process_time() - started, violations[0] if violations else ""))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Chaos: a real coordinator, three real agents, two deployments of stand-ins, and one fault after another.

    python -m tests.chaos.run --rounds 50 --seed 1

A round is one fault and the time until everything has settled again; now and then the next fault comes first.
The seed gives faults, victims and pauses; what the machine makes of them is its own. After each round the
history so far is judged (`tests/bed/history.py`); the first violation ends the run, prints seed and timeline,
and leaves the folder with every log, ledger and database where it is.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sparkd.errors import CoordinatorUnreachable, SparkdError
from sparkd.records.intent import Intent
from sparkd.records.status import DeploymentStatus
from tests.bed.cluster import PROC, Cluster, Sighting, cluster, until
from tests.bed.disk import full, small_disk
from tests.bed.history import ENDED, Asked, History, Recorder, promises, violations
from tests.bed.stand_in import configure

NODES = 3
SETTLE_S = 45.0
"""A lost node is known in 6 s, a frozen worker in 4; all else takes one or two, times a loaded machine."""
WORN_OUT = 7
"""Falls after which a deployment is replaced: more than ten a day are not restarted (design §11)."""
DISK_BYTES = 4 << 20
DISK_NODE = 3

COORDINATOR_POINTS = ("1-term", "2-term-taken", "3-commit", "4-committed", "5-launch-committed", "6-shown")
AGENT_POINTS = (
    *("1-fences", "2-fences-saved", "3-intent", "4-intent-committed", "5-folder", "6-folder-made"),
    *("7-shim-spawned", "8-shim-answered", "9-started", "10-started-committed", "11-kill", "12-kill-sent"),
    *("13-proved", "14-post", "15-posted", "16-end", "17-end-committed", "18-acknowledge", "19-acknowledged"),
    *("20-prune", "21-pruned", "22-forgotten", "23-adopted", "24-adoption-done"),
)
CAN_FAIL = frozenset(
    {"3-commit", "1-fences", "3-intent", "5-folder", "6-folder-made", "9-started"}
    | {"14-post", "16-end", "18-acknowledge", "20-prune"}
)


class Violation(Exception):
    """What may not be so."""


class Chaos:
    def __init__(self, bed: Cluster, seed: int, *, disk: bool) -> None:
        self.bed = bed
        self.seed = seed
        self.chance = random.Random(seed)
        self.slots: list[str | None] = [None, None]
        self.made = 0
        self.segments: set[Path] = set()
        self.counts: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self.armed: set[int] = set()
        """Daemons that may die by themselves."""
        self.intents: dict[str, Intent] = {}
        self.faults: dict[Callable[[], None], int] = {
            self.kill_rank: 5,
            self.kill_coordinator: 3,
            self.kill_agent: 4,
            self.kill_several: 2,
            self.arm_coordinator: 3,
            self.arm_agent: 5,
            self.freeze_worker: 2,
            self.pause_agent: 2,
            self.pause_coordinator: 1,
            self.command: 6,
            **({self.fill_disk: 2} if disk else {}),
        }
        bed.start()
        self.recorder = Recorder(bed)

    @property
    def history(self) -> History:
        return self.recorder.history

    def run(self, rounds: int) -> None:
        """Raises Violation."""
        self.up(0)
        self.up(1)
        self.settle()
        for number in range(1, rounds + 1):
            fault = self.chance.choices(list(self.faults), list(self.faults.values()))[0]
            self.counts[fault.__name__] += 1
            self.history.note(f"round {number}: {fault.__name__}")
            self._revive()
            begun = time.monotonic()
            fault()
            if number == rounds or self.chance.random() < 0.8:
                self.look()
                self.renew()
            self.seconds[fault.__name__] += time.monotonic() - begun
        self.end()

    def look(self) -> None:
        """Settle and judge; anew if an armed coordinator comes to its failpoint in the midst of it."""
        while True:
            self.settle()
            try:
                self.judge()
            except CoordinatorUnreachable as error:
                if 0 not in self.armed:
                    raise
                until(self._revive, f"the coordinator to be at its failpoint ({error})", 5.0)
            else:
                return

    def _revive(self) -> bool:
        """Start again what has come to its failpoint, as a service manager would. Whether anything had."""
        ended = [which for which in self.armed if not self.bed.daemons[which].alive]
        for which in ended:
            daemon = self.bed.daemons[which]
            self.history.note(f"{daemon.name} came to its failpoint")
            self.armed.discard(which)
            daemon.start()
        return bool(ended)

    # Faults. Each leaves every daemon running, or armed to die once.

    def kill_rank(self) -> None:
        """Any process of any rank, the leader most often."""
        seen = self._ranks()
        if seen:
            victim = self.chance.choice([one for one in seen if one.leader] or seen)
            if self.chance.random() < 0.4:
                victim = self.chance.choice(seen)
            self.history.note(f"kill -9 {victim.ref.pid} of {victim.rank} on node {victim.node}")
            self._signal(victim, signal.SIGKILL)

    def _ranks(self) -> list[Sighting]:
        """What runs; a deployment that was just asked for gets the time to be there."""
        end = time.monotonic() + 1.5
        while not (seen := self.bed.sightings()) and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(self.chance.choice([0.0, 0.3]))
        return self.bed.sightings() if seen else []

    def kill_coordinator(self) -> None:
        self._kill(0)

    def kill_agent(self) -> None:
        self._kill(self.chance.randint(1, NODES))

    def kill_several(self) -> None:
        """Daemons and a rank in one moment: nobody sees how it ended."""
        self._kill(*self.chance.sample(range(NODES + 1), 2), rank=True)

    def arm_coordinator(self) -> None:
        self._arm(0, self.chance.choice(COORDINATOR_POINTS), self.chance.randint(1, 6))

    def arm_agent(self) -> None:
        self._arm(self.chance.randint(1, NODES), self.chance.choice(AGENT_POINTS), self.chance.randint(1, 2))

    def freeze_worker(self) -> None:
        """For a moment, which must not matter, or for good, which only a pulse can find."""
        seen = self._ranks()
        if not seen:
            return
        victim = self.chance.choice(seen)
        for_s = self.chance.choice([0.1, 0.2, 0.5, None])
        self.history.note(f"SIGSTOP {victim.ref.pid} of {victim.rank}, for {for_s or 'ever'}")
        self._signal(victim, signal.SIGSTOP)
        if for_s is not None:
            time.sleep(for_s)
            self._signal(victim, signal.SIGCONT)

    def pause_agent(self) -> None:
        self._pause(self.chance.randint(1, NODES), self.chance.choice([0.5, 1.0, 3.0, 7.0]))

    def pause_coordinator(self) -> None:
        self._pause(0, self.chance.choice([0.5, 3.0]))

    def command(self) -> None:
        """A person changes their mind, once or twice in a row."""
        for _ in range(self.chance.randint(1, 3)):
            self._ask_something()
            time.sleep(self.chance.choice([0.0, 0.1, 0.5]))

    def fill_disk(self) -> None:
        """The state folder of one agent takes nothing, while somebody asks for something."""
        self.history.note(f"disk of node {DISK_NODE} full")
        with full(self.bed.agent_state(DISK_NODE)):
            self._ask_something()
            time.sleep(self.chance.choice([0.5, 2.0]))
        self.history.note(f"disk of node {DISK_NODE} free")

    def _kill(self, *which: int, rank: bool = False) -> None:
        self.armed -= set(which)
        daemons = [self.bed.daemons[i] for i in which]
        self.history.note(f"kill -9 {' '.join(d.name for d in daemons)}")
        for daemon in daemons:
            if daemon.alive:
                daemon.signal(signal.SIGKILL)
        if rank:
            self.kill_rank()
        for daemon in daemons:
            daemon.wait()
        time.sleep(self.chance.choice([0.0, 0.1, 0.5, 1.0]))
        for daemon in daemons:
            daemon.start()

    def _arm(self, which: int, step: str, passage: int) -> None:
        """A new life with a failpoint, something to do for it, and another life if it did not survive."""
        daemon = self.bed.daemons[which]
        kind = "raise" if step in CAN_FAIL and self.chance.random() < 0.4 else "kill"
        if self.chance.random() < 0.1:
            kind = "sleep=1500"
        point = f"{'agent' if which else 'coordinator'}.{step}:{kind}@{passage}"
        self.history.note(f"{daemon.name} dies, and lives again with {point}")
        daemon.kill()
        daemon.start(point)
        self._ask_something()
        self.armed.add(which)
        time.sleep(self.chance.choice([0.0, 0.5, 1.5]))

    def _pause(self, which: int, for_s: float) -> None:
        daemon = self.bed.daemons[which]
        if not daemon.alive:
            return
        self.history.note(f"SIGSTOP {daemon.name} for {for_s:g} s")
        self.recorder.stopped.add(which)
        daemon.signal(signal.SIGSTOP)
        time.sleep(for_s)
        daemon.signal(signal.SIGCONT)
        self.recorder.stopped.discard(which)

    @staticmethod
    def _signal(victim: Sighting, number: int) -> None:
        if PROC.alive(victim.ref):
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim.ref.pid, number)

    # Commands.

    def up(self, slot: int) -> None:
        name = self.slots[slot]
        if name is None:
            self.made += 1
            name = self.slots[slot] = f"c{self.seed}-{self.made}"
            self.intents[name] = self.bed.intent(
                f"layout.tp={self.chance.choice([1, 2, 2])}",
                "ready.pulse.silence_s=1",
                "ready.pulse.timeout_s=2",
                "restart.budget=100",
                "restart.backoff_max_s=0.2",
            )
        self._ask(name, "up", lambda: self.bed.client.up(name, self.intents[name]))

    def down(self, slot: int) -> bool:
        """Whether it was acknowledged, or there is nothing to end."""
        name = self.slots[slot]
        return name is None or self._ask(name, "down", lambda: self.bed.client.down(name))

    def restart(self, slot: int) -> None:
        name = self.slots[slot]
        seen = self.bed.status(name) if name is not None else None
        if seen is not None:
            self._ask(seen.name, "restart", lambda: self.bed.client.restart(seen.name, seen.generation))

    def _ask_something(self) -> None:
        slot = self.chance.randrange(len(self.slots))
        self.chance.choice([self.up, self.up, self.down, self.restart, self.restart])(slot)

    def _ask(self, name: str, verb: str, act: Callable[[], object]) -> bool:
        sure = False
        try:
            act()
            sure = True
        except SparkdError as error:
            self.history.note(f"{verb} {name}: {error}")
        self.history.asked.append(Asked(time.time(), name, verb, sure))
        return sure

    # Between faults.

    def settle(self) -> None:
        """Every deployment is ready, ended, or waits for something that it names."""
        try:
            until(self._settled, "the cluster to settle", SETTLE_S)
        except AssertionError as error:
            with contextlib.suppress(SparkdError):
                self.history.events = self.bed.client.recent_events(limit=10_000)
            states = [self.bed.status(name) for name in self.slots if name is not None]
            raise Violation(f"{error}: {states}") from error
        for one in self.bed.sightings():
            self.segments |= {
                Path(f.path) for f in PROC.files_under(one.ref.pid, "/dev/shm") if " " not in f.path
            }

    def _settled(self) -> bool:
        self._revive()
        if not self.bed.in_contact():
            return False
        try:
            deployments = self.bed.client.status().deployments
        except SparkdError:
            return False
        return all(self._at_rest(one) for one in deployments)

    def _at_rest(self, one: DeploymentStatus) -> bool:
        if one.phase == "pending":
            # The nodes are there, so it can only wait for the other deployment's.
            other = [name for name in self.slots if name not in (None, one.name)]
            return one.waiting_for is not None and any(name in one.waiting_for.what for name in other if name)
        if one.phase != "ready":
            return one.phase in ENDED
        gang = [f"sparkd-{one.name}-g{one.generation}-r{rank.rank}" for rank in one.ranks]
        alive = {s.rank for s in self.bed.sightings()}
        return alive.issuperset(gang) and not any(_frozen(s) for s in self.bed.sightings())

    def judge(self) -> None:
        # Looks first, events after: whatever was seen running has its launch among them.
        seen = tuple(self.history.samples)
        self.history.events = self.bed.client.recent_events(limit=10_000)
        so_far = replace(self.history, samples=list(seen))
        wrong = [*violations(so_far), *promises(so_far, self.bed.client.status())]
        if wrong:
            raise Violation("\n".join(wrong))

    def renew(self) -> None:
        """Bring up again what is down; replace what has fallen so often that it would not be restarted."""
        for slot, name in enumerate(self.slots):
            seen = self.bed.status(name) if name is not None else None
            if seen is not None and (seen.falls >= WORN_OUT or seen.phase == "failed"):
                self.slots[slot] = None if self.down(slot) else name
            if self.slots[slot] is None or (
                seen is not None and seen.phase in ENDED and self.chance.random() < 0.9
            ):
                self.up(slot)

    def end(self) -> None:
        """Down with everything: nothing may be left."""
        for which in tuple(self.armed):
            self._kill(which)
        for slot in range(len(self.slots)):
            until(lambda slot=slot: self.down(slot), "down to be acknowledged", SETTLE_S)  # type: ignore[misc]
        self.look()
        until(lambda: not self.bed.sightings(), "every rank to be gone", 5.0)
        left = [str(path) for path in self.segments if path.exists()]
        if left:
            raise Violation(f"shared memory is left: {', '.join(sorted(left))}")
        agents = {agent.pid for agent in self.bed.agents}
        until(
            lambda: not any(s.state == "Z" and s.ppid in agents for s in PROC.stats().values()),
            "agents to have no zombies",
            5.0,
        )
        for daemon in self.bed.daemons:
            daemon.end()
        left = [str(path) for path in (self.bed.folder / "run").rglob("*.sock")]
        if left:
            raise Violation(f"sockets are left: {', '.join(left)}")


def _frozen(one: Sighting) -> bool:
    """Stopped, and no token without it: a follower's launcher or a resource tracker may sleep for ever."""
    stat = PROC.stat(one.ref.pid)
    needed = PROC.title(one.ref.pid).startswith("VLLM::") or (one.leader and one.rank.endswith("-r0"))
    return stat is not None and stat.state == "T" and needed


def chaos(rounds: int, seed: int) -> str:
    """Run it; gives a line about what was done. Raises Violation with seed, timeline and folder."""
    folder = Path(tempfile.mkdtemp(prefix=f"sparkd-chaos-{seed}-"))
    begun = time.monotonic()
    with cluster(folder, NODES) as bed, small_disk(bed.agent_state(DISK_NODE), DISK_BYTES) as disk:
        configure(bed.engine, BOOT_S=0.1, EXIT_DELAY_S=0.2, SHM_BYTES=4096, TERM_S=1)
        one = Chaos(bed, seed, disk=disk)
        try:
            one.run(rounds)
        except (Violation, AssertionError, SparkdError) as error:
            kept = f"the state is kept below {folder}"
            again = f"again: python -m tests.chaos.run --rounds {rounds} --seed {seed}"
            timeline = one.history.timeline(one.history.samples[-1].at - 60)
            raise Violation(f"{timeline}\n\n{error}\n{again}\n{kept}") from error
        finally:
            one.recorder.stop()
            bed.close()
            if disk:
                shutil.copytree(bed.agent_state(DISK_NODE), folder / "disk", dirs_exist_ok=True)
    shutil.rmtree(folder)
    took = time.monotonic() - begun
    done = ", ".join(f"{name} {n} in {one.seconds[name]:.0f} s" for name, n in one.counts.most_common())
    return (
        f"seed {seed}: {rounds} rounds in {took:.0f} s, {len(one.history.samples)} looks, "
        f"{len(one.history.events)} events, {one.made} deployments; {done}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--each", type=int, default=50, help="rounds on one cluster; then a new one, seed + 1"
    )
    options = parser.parse_args()
    for at in range(0, options.rounds, options.each):
        try:
            done = chaos(min(options.each, options.rounds - at), options.seed + at // options.each)
        except Violation as violation:
            sys.stdout.write(f"{violation}\n")
            return 1
        sys.stdout.write(f"{done}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())

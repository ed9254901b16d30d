"""One rank on this node, from its start (or its adoption) to the proof that nothing of it is left.

The decisions are `life.py`'s. This is the shell around them: a pidfd on each essential process, a look at the
rank's processes each second, and the kill path.
"""

import asyncio
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from sparkd.clock import Clock, Instant
from sparkd.failpoints import passed
from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd.records.rank import RankSpec
from sparkd.records.report import Exit, RankState
from sparkd_agent import exits, life
from sparkd_agent.essentials import LEADER, LOG_LINES, SHIM, Essential, Essentials
from sparkd_agent.kill import kill_exactly, kill_pass, signal_member, strike, survivors
from sparkd_agent.logs import RankLog, last_words, tells_of_a_death
from sparkd_agent.members import Marks, RankMembers
from sparkd_agent.procfs import ProcessRef, ProcFs, Stat
from sparkd_agent.rankfolder import RankFolder
from sparkd_agent.runtime.base import RankHandle
from sparkd_agent.shm import ShmJanitor
from sparkd_agent.usage import StoppedProcess, Usage, UsageMeter

_POLL_S: Final = 0.02
"""Between two questions for an exit status, and for the record of a shim that is coming up."""
_KILL_PAUSE_GROWTH: Final = 10
"""The pause between two passes of the kill path grows up to so many times its first length."""


@dataclass(frozen=True, slots=True)
class RankView:
    """What is known of a rank now; counters as in `Usage`."""

    name: str
    state: RankState
    since: Instant
    """Of the state."""
    pid: int | None = None
    """The leader's."""
    fell: str | None = None
    """Why it counts as fallen, in plain words; stays when the rank is gone."""
    reason: str = ""
    """Why its end was asked for."""
    exit: Exit | None = None
    """Of the process whose unasked end came first."""
    exits: tuple[Exit, ...] = ()
    """Of the leader, and of every essential process that ended before anything was killed."""
    lines: tuple[str, ...] = ()
    """The most telling lines of a fallen rank, oldest first."""
    processes: int = 0
    rss_bytes: int = 0
    read_bytes: int = 0
    rchar_bytes: int = 0
    cpu_seconds: float = 0.0
    compiling: bool = False
    stopped: tuple[StoppedProcess, ...] = ()
    remains: tuple[str, ...] = ()
    """What could not be ended or removed, named."""


class RankSupervisor:
    """Call `run` once, in the loop; `kill`, `terminate`, `stacks` and `view` at any time.

    `on_change` is called within milliseconds of every change of state, and when an exit status or the telling
    lines become known.
    """

    def __init__(
        self,
        handle: RankHandle,
        spec: RankSpec,
        *,
        procfs: ProcFs,
        clock: Clock,
        shm: ShmJanitor,
        on_change: Callable[["RankSupervisor"], None],
        limits: Defaults = DEFAULTS,
    ) -> None:
        self.name = handle.name
        self.spec = spec
        self.handle = handle
        self._procfs = procfs
        self._clock = clock
        self._shm = shm
        self._on_change = on_change
        self._limits = limits
        self._folder = RankFolder(handle.folder)
        prefix = spec.env.get("VLLM_PROCESS_NAME_PREFIX", "VLLM")
        self._essential_title = re.compile(re.escape(prefix) + r"::\S+")
        self._life = life.Life("starting", clock.now().mono)
        self._since = handle.started
        self._target = RankMembers(procfs, Marks.of(handle))
        self._essentials = Essentials(self._folder, procfs=procfs, clock=clock, on_end=self._ended)
        self._told_of: list[Essential] = []
        self._first: Essential | None = None
        self._meter = UsageMeter(procfs)
        self._usage = Usage()
        self._lines: tuple[str, ...] = ()
        self._terminated = False
        self._passes = 0
        self._empty_since: float | None = None
        self._news: object = None
        self._wake = asyncio.Event()

    @property
    def view(self) -> RankView:
        usage = self._usage
        return RankView(
            name=self.name,
            state=self._life.state,
            since=self._since,
            pid=None if self.handle.leader is None else self.handle.leader.pid,
            fell=self._life.fell,
            reason=self._life.reason,
            exit=None if self._first is None else self._first.exit,
            exits=tuple(one.exit for one in self._told_of if one.exit is not None),
            lines=self._lines,
            processes=usage.processes,
            rss_bytes=usage.rss_bytes,
            read_bytes=usage.read_bytes,
            rchar_bytes=usage.rchar_bytes,
            cpu_seconds=usage.cpu_seconds,
            compiling=usage.compiling,
            stopped=usage.stopped,
            remains=self._life.remains,
        )

    def kill(self, reason: str, *, at_once: bool = False) -> None:
        """End everything of the rank now. `at_once`: what is known of it before this returns, without a look
        at it first. On a node that has no memory left each look may wait for what is to be killed.
        """
        asked = life.kill_asked(self._life, self._now(), reason)
        if at_once and self._passes == 0:
            strike(self._target, self._essentials.living)
            self._passes = 1
            asked = life.killed(asked, self._now(), (), self._limits)
        self._become(asked)
        self._wake.set()

    def terminate(self, grace_s: float, reason: str) -> None:
        """SIGTERM to the leader; what is left after the grace (seconds), or after the leader, is killed."""
        self._become(life.end_asked(self._life, self._now(), grace_s, reason))
        self._terminate_leader()
        self._wake.set()

    def listens_on(self, port: int) -> bool:
        """Whether who listens on this TCP port is of this rank: another program may have taken it first."""
        inodes = self._procfs.listeners(port)
        members = self._target.members(thorough=False)
        return any(self._procfs.holds_socket(stat.pid, inodes) for stat in members)

    def pids(self) -> frozenset[int]:
        """Of all that lives of the rank now."""
        return frozenset(stat.pid for stat in self._target.members(thorough=False))

    def model_processes(self) -> tuple[tuple[str, int], ...]:
        """(title, pid) of those that hold the model: its workers, else the engine that works itself."""
        living = self._essentials.living_titles()
        workers = tuple(one for one in living if "::Worker" in one[0])
        return workers or tuple(one for one in living if "::EngineCore" in one[0])

    def traceable(self) -> tuple[tuple[int, str], ...]:
        """(pid, title) of those that write their stacks when asked: SIGUSR2 would kill all others."""
        members = self._target.members(thorough=False)
        pids = [stat.pid for stat in members if self._procfs.catches(stat.pid, signal.SIGUSR2)]
        return tuple((pid, self._procfs.title(pid)) for pid in sorted(pids))

    def stack(self, pid: int) -> bool:
        """Ask one of `traceable` for its stacks; they come into the log. Whether it was asked."""
        return signal_member(self._target.owns, pid, signal.SIGUSR2)

    def whereabouts(self, pid: int) -> str:
        """What the kernel says of a process: `state T in do_signal_stop`."""
        stat = self._procfs.stat(pid)
        if stat is None:
            return "gone"
        where = self._procfs.wchan(pid)
        return f"state {stat.state}" + (f" in {where}" if where else "")

    async def run(self) -> None:
        """Until it is proved gone. One that cannot be killed is `unkillable`, and tried again for ever."""
        self._shm.watch(self.name, self._folder.shm_names)
        try:
            await self._begin()
            while not self._life.over:
                self._step()
                await self._pause()
        finally:
            self._essentials.close()
            self._target.close()

    # Beginning

    async def _begin(self) -> None:
        if self.handle.shim is None:
            await self._await_record()
        if self.handle.leader is None or self.handle.shim is None:
            self._fall("its shim was never started")
        elif self.handle.boot != self._procfs.boot_id():
            self._first = self._essentials.missed(LEADER, self.handle.leader)
            self._told_of.append(self._first)
            self._fall("the machine was started anew")
            self._settle(final=True)
            self._become(life.nothing_left(self._life, self._now()))
        else:
            self._watch(self.handle.leader, self.handle.shim)

    async def _await_record(self) -> None:
        """An agent died between making the folder and hearing from the shim, which may be on its way."""
        deadline = self._now() + self._limits.shim_start_s
        found = self.handle
        while found.shim is None and self._now() < deadline and (found.coming_up or self._folder.locked()):
            await asyncio.sleep(_POLL_S)
            recorded = self._folder.handle()
            if recorded.shim is not None:
                # From inside a container its shim cannot see which group it is in.
                found = replace(recorded, cgroup=recorded.cgroup or found.cgroup)
        self.handle = found
        self._target.close()
        self._target = RankMembers(self._procfs, Marks.of(found))

    def _watch(self, leader: ProcessRef, shim: ProcessRef) -> None:
        missed = self._essentials.hold_noted()
        if self._essentials.hold(LEADER, leader) is None:
            missed.append(self._essentials.missed(LEADER, leader))
        if missed:
            self._missed(missed)
        elif self._essentials.hold(SHIM, shim) is None:
            self._fall("its shim ended while no agent watched")
        else:
            self._become(life.began(self._life, self._now()))
            self._terminate_leader()

    def _missed(self, missed: list[Essential]) -> None:
        """The first was the one whose end the launcher lived to tell of, else the launcher itself."""
        told = (one for one in missed if one.exit is not None)
        self._first = next(told, missed[-1])
        self._told_of += missed
        how = self._first.exit
        self._fall(exits.describe(how) if how else f"its {self._first.title} ended while no agent watched")

    def _fall(self, why: str) -> None:
        self._become(life.essential_ended(self._life, self._now(), why, self._limits))

    # Looking

    def _step(self) -> None:
        now = self._now()
        killing = self._life.kill_at is not None and now >= self._life.kill_at
        if not killing:
            self._look(now)
        self._settle(final=False)
        if killing:
            self._kill_once(now)
        self._tell()

    def _look(self, now: float) -> None:
        stats = self._target.members(thorough=False)
        for stat in stats:
            title = self._essential(stat.pid)
            parent = self._essential(stat.ppid)
            # A fork shows its parent's title until it has become something else, such as a compiler; the
            # parent's own may have grown meanwhile (`VLLM::Worker` becomes `VLLM::Worker_TP0`).
            if title is not None and not (parent is not None and parent.startswith(title)):
                self._essentials.hold(title, stat.ref)
        self._usage = self._meter.measure(stats, now)
        self._shm.note(self.name, [stat.pid for stat in stats])

    def _essential(self, pid: int) -> str | None:
        """The title that makes a process essential."""
        match = self._essential_title.match(self._procfs.title(pid))
        return None if match is None else match[0]

    def _ended(self, one: Essential) -> None:
        first = self._first is None and self._life.wanted
        if first:
            self._first = one
        # What we killed ourselves is no news, the leader apart.
        if first or one.title == LEADER or (one.title != SHIM and self._life.killed_since is None):
            self._told_of.append(one)
        happened = life.leader_ended if one.title == LEADER else life.essential_ended
        why = f"{one.title} (pid {one.ref.pid}) ended"
        self._become(happened(self._life, self._now(), why, self._limits))
        self._wake.set()

    def _settle(self, *, final: bool) -> None:
        """Find out how those ended that ended by themselves; `final`: who is unknown now stays so."""
        shim_alive = self._shim_alive()
        for one in self._told_of:
            self._essentials.settle(one, shim_alive=shim_alive, final=final)
        self._name_the_first()
        leader = self._essentials.leader
        if not shim_alive or (leader is not None and leader.exit is not None) or self._said_its_last_words():
            self._become(life.last_words_written(self._life, self._now()))

    def _name_the_first(self) -> None:
        """Of those that were found ended in one moment the kind of the end decides."""
        if self._first is None:
            return
        at = self._first.ended_at
        self._first = min(
            (one for one in self._told_of if one.ended_at == at),
            key=lambda one: exits.kind_of(one.exit),
            default=self._first,
        )
        if self._first.exit is not None:
            self._life = replace(self._life, fell=self._plainly(self._first.exit))

    def _said_its_last_words(self) -> bool:
        if self._life.state != "fallen" or self._life.killed_since is not None:
            return False
        return tells_of_a_death(RankLog(self._folder.log).last(LOG_LINES))

    def _plainly(self, how: Exit) -> str:
        record = self._essentials.exit_record() if how.process == LEADER else None
        return (record.error if record is not None else None) or exits.describe(how)

    # Killing

    def _terminate_leader(self) -> None:
        leader = self._essentials.leader
        if self._life.state == "stopping" and not self._terminated and leader is not None:
            self._terminated = True
            kill_exactly(self._procfs, leader.ref, signal.SIGTERM)

    def _kill_once(self, now: float) -> None:
        if self._passes == 0:
            pids = [stat.pid for stat in self._target.members()]
            self._shm.note(self.name, pids, thorough=True)
            self._collect_lines()
            passed("agent.11-kill")
        self._passes += 1
        left = kill_pass(self._target, self._essentials.living)
        passed("agent.12-kill-sent")
        if not left:
            self._end_shim(now)
            if not self._shim_alive() and not self._awaits_reaping(now):
                self._prove(now)
                return
        else:
            self._empty_since = None
        since = self._life.killed_since
        overdue = since is not None and now - since >= self._limits.kill_proof_s
        remains = survivors(self._procfs, left or self._shim_stat()) if overdue else ()
        self._become(life.killed(self._life, now, tuple(str(one) for one in remains), self._limits))

    def _end_shim(self, now: float) -> None:
        """A shim goes by itself once its rank is gone and the exit written; one that does not is helped."""
        if self._empty_since is None:
            self._empty_since = now
        if self.handle.shim is not None and now - self._empty_since >= self._limits.shim_exit_s:
            kill_exactly(self._procfs, self.handle.shim)

    def _awaits_reaping(self, now: float) -> bool:
        """The kernel tells how one ended from when its parent, maybe a busy init, has taken note of it."""
        if self._empty_since is None or now - self._empty_since >= self._limits.reap_s:
            return False
        return any(one.exit is None and self._essentials.is_unreaped(one) for one in self._told_of)

    def _prove(self, now: float) -> None:
        self._essentials.end_all()
        remains = self._shm.sweep(self.name)
        self._usage = self._meter.measure((), now)
        self._collect_lines()
        self._settle(final=True)
        passed("agent.13-proved")
        self._become(life.nothing_left(self._life, now, remains))

    def _collect_lines(self) -> None:
        if self._life.fell is not None:
            self._lines = last_words(RankLog(self._folder.log).last(LOG_LINES))

    def _shim_alive(self) -> bool:
        return self.handle.shim is not None and self._procfs.alive(self.handle.shim)

    def _shim_stat(self) -> list[Stat]:
        stat = None if self.handle.shim is None else self._procfs.stat(self.handle.shim.pid)
        return [] if stat is None else [stat]

    # Time and news

    async def _pause(self) -> None:
        timer = asyncio.get_running_loop().call_later(self._pause_s(), self._wake.set)
        await self._wake.wait()
        timer.cancel()
        self._wake.clear()

    def _pause_s(self) -> float:
        limits, now = self._limits, self._now()
        if self._life.state == "unkillable":
            return limits.unkillable_repeat_s
        if self._life.killed_since is not None:
            return limits.kill_repeat_s * min(self._passes, _KILL_PAUSE_GROWTH)
        young = now - self.handle.started.mono < limits.rank_young_s
        pause = limits.rank_young_scan_s if young else limits.rank_scan_s
        if self._life.state == "fallen":
            pause = _POLL_S
        if self._life.kill_at is not None:
            pause = min(pause, self._life.kill_at - now)
        return max(0.0, pause)

    def _become(self, new: life.Life) -> None:
        if new.state != self._life.state:
            self._since = self._clock.now()
        self._life = new
        self._tell()

    def _tell(self) -> None:
        seen = self.view
        news = (seen.state, seen.fell, seen.exits, seen.lines, seen.remains)
        if news != self._news:
            self._news = news
            self._on_change(self)

    def _now(self) -> float:
        return self._clock.now().mono

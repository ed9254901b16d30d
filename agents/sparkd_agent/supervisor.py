"""One rank on this node, from its start (or its adoption) to the proof that nothing of it is left.

The decisions are `life.py`'s. This is the shell around them: a pidfd on each essential process, a look at the
rank's processes each second, and the kill path.
"""

import asyncio
import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from sparkd.clock import Clock, Instant
from sparkd.errors import StateCorrupt
from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd.records.rank import RankSpec
from sparkd.records.report import Exit, RankState
from sparkd_agent import exits, life
from sparkd_agent.kill import kill_exactly, kill_pass, signal_member, survivors
from sparkd_agent.logs import RankLog, telling_lines
from sparkd_agent.members import Marks, RankMembers
from sparkd_agent.procfs import ProcessRef, ProcFs, Stat
from sparkd_agent.rankfolder import ExitRecord, RankFolder
from sparkd_agent.runtime.base import RankHandle
from sparkd_agent.shm import ShmJanitor

COMPILERS: Final = frozenset(
    {"as", "c++", "cc", "cc1", "cc1plus", "cicc", "clang", "clang++", "collect2", "cudafe++", "fatbinary"}
    | {"g++", "gcc", "ld", "ninja", "nvcc", "nvlink", "ptxas"}
)

SHIM: Final = "shim"
_LAST_LINES: Final = 400
"""How far back the telling lines of a fall are looked for."""
_EXIT_POLL_S: Final = 0.02
_KILL_REPEAT_MAX: Final = 10
"""The pause between two passes of the kill path grows up to so many times its first length."""


@dataclass(frozen=True, slots=True)
class StoppedProcess:
    """A process in state T: somebody sent it SIGSTOP, and so it neither serves nor obeys SIGTERM."""

    pid: int
    title: str
    since: float
    """Monotonic seconds."""


@dataclass(frozen=True, slots=True)
class RankView:
    """What is known of a rank now. Counters cover all its processes, those that ended included."""

    name: str
    state: RankState
    since: Instant
    pid: int | None = None
    """The leader's."""
    fell: str | None = None
    reason: str = ""
    """Why its end was asked for."""
    exit: Exit | None = None
    """Of the process whose end came first."""
    exits: tuple[Exit, ...] = ()
    """Of the leader, and of every essential process that ended before anything was killed."""
    lines: tuple[str, ...] = ()
    """The most telling lines of a fallen rank, oldest first."""
    processes: int = 0
    rss_bytes: int = 0
    read_bytes: int = 0
    """From disks, mapped files included."""
    rchar_bytes: int = 0
    """Through `read`, page cache included."""
    cpu_seconds: float = 0.0
    compiling: bool = False
    """Whether a compiler is among its processes."""
    stopped: tuple[StoppedProcess, ...] = ()
    remains: tuple[str, ...] = ()
    """What could not be ended or removed, named."""


@dataclass(slots=True)
class _Essential:
    title: str
    ref: ProcessRef
    pidfd: int
    ended_at: Instant | None = None
    exit: Exit | None = None


@dataclass(slots=True)
class _Usage:
    cpu_seconds: float = 0.0
    read_bytes: int = 0
    rchar_bytes: int = 0


class RankSupervisor:
    """Call `run` once, in the loop; `kill`, `terminate`, `stacks` and `view` at any time before, during, after.

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
        self.spec = spec
        self.name = handle.name
        self._handle = handle
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
        self._essentials: dict[ProcessRef, _Essential] = {}
        self._fallen_first: _Essential | None = None
        self._usage: dict[ProcessRef, _Usage] = {}
        self._stopped: dict[ProcessRef, StoppedProcess] = {}
        self._processes = self._rss_bytes = 0
        self._compiling = False
        self._lines: tuple[str, ...] = ()
        self._terminated = False
        self._passes = 0
        self._empty_since: float | None = None
        self._told: object = None
        self._wake = asyncio.Event()

    @property
    def handle(self) -> RankHandle:
        return self._handle

    @property
    def view(self) -> RankView:
        first = self._fallen_first
        return RankView(
            name=self.name,
            state=self._life.state,
            since=self._since,
            pid=None if self._handle.leader is None else self._handle.leader.pid,
            fell=self._life.fell,
            reason=self._life.reason,
            exit=first.exit if first is not None else None,
            exits=tuple(one.exit for one in self._essentials.values() if one.exit is not None),
            lines=self._lines,
            processes=self._processes,
            rss_bytes=self._rss_bytes,
            read_bytes=sum(one.read_bytes for one in self._usage.values()),
            rchar_bytes=sum(one.rchar_bytes for one in self._usage.values()),
            cpu_seconds=sum(one.cpu_seconds for one in self._usage.values()),
            compiling=self._compiling,
            stopped=tuple(self._stopped.values()),
            remains=self._life.remains,
        )

    def kill(self, reason: str) -> None:
        """End everything of the rank now."""
        self._become(life.kill_asked(self._life, self._now(), reason))
        self._wake.set()

    def terminate(self, grace_s: float, reason: str) -> None:
        """SIGTERM to the leader; what is left after the grace (seconds), or after the leader, is killed."""
        self._become(life.end_asked(self._life, self._now(), grace_s, reason))
        self._terminate_leader()
        self._wake.set()

    def stacks(self) -> tuple[int, ...]:
        """Ask for stacks by SIGUSR2, of those processes only that have a handler for it. Returns their pids."""
        number = signal.SIGUSR2
        return tuple(
            stat.pid
            for stat in self._target.members(thorough=False)
            if self._procfs.catches(stat.pid, number) and signal_member(self._target.owns, stat.pid, number)
        )

    async def run(self) -> None:
        """Until it is proved gone. One that cannot be killed is reported as `unkillable` and tried again for ever."""
        self._shm.watch(self.name, self._folder.shm_names)
        try:
            await self._begin()
            while not self._life.over:
                self._step()
                await self._pause()
        finally:
            self._release()

    # Beginning

    async def _begin(self) -> None:
        if self._handle.shim is None:
            await self._await_record()
        leader = self._handle.leader
        if leader is None:
            self._become(
                life.essential_ended(self._life, self._now(), "its shim was never started", self._limits)
            )
        elif self._handle.boot != self._procfs.boot_id():
            self._ended_long_ago(leader, "the machine was started anew")
            self._settle_exits(final=True)
            self._become(life.nothing_left(self._life, self._now()))
        else:
            self._hold_first(leader)

    def _hold_first(self, leader: ProcessRef) -> None:
        if self._hold(exits.LEADER, leader):
            self._become(life.began(self._life, self._now()))
            self._terminate_leader()
        else:
            self._ended_long_ago(leader, "its leader ended while no agent watched")
        shim = self._handle.shim
        if shim is not None and not self._hold(SHIM, shim):
            self._become(
                life.essential_ended(
                    self._life, self._now(), "its shim ended while no agent watched", self._limits
                )
            )

    async def _await_record(self) -> None:
        """Another agent died between making the folder and hearing from the shim, which may be on its way."""
        deadline = self._now() + self._limits.shim_start_s
        while self._handle.shim is None and self._folder.locked() and self._now() < deadline:
            await asyncio.sleep(_EXIT_POLL_S)
            self._handle = self._folder.handle()
        self._target = RankMembers(self._procfs, Marks.of(self._handle))

    def _ended_long_ago(self, leader: ProcessRef, why: str) -> None:
        record = self._exit_record()
        at = self._clock.now() if record is None else Instant(record.mono, record.wall)
        gone = _Essential(exits.LEADER, leader, pidfd=-1, ended_at=at)
        self._essentials[leader] = gone
        self._fallen_first = gone
        self._become(life.leader_ended(self._life, self._now(), why, self._limits))

    # Looking

    def _step(self) -> None:
        now = self._now()
        killing = self._life.kill_at is not None and now >= self._life.kill_at
        if not killing:
            self._look()
        self._settle_exits(final=False)
        if killing:
            self._kill_once()

    def _look(self) -> None:
        stats = self._target.members(thorough=False)
        for stat in stats:
            self._notice_essential(stat)
        self._measure(stats)
        self._shm.note(self.name, [stat.pid for stat in stats])

    def _notice_essential(self, stat: Stat) -> None:
        known = self._essentials.get(stat.ref)
        if known is not None and known.title in {exits.LEADER, SHIM}:
            return
        match = self._essential_title.match(self._procfs.title(stat.pid))
        if match is None:
            return
        if known is None:
            self._hold(match[0], stat.ref)
        else:
            known.title = match[0]  # `VLLM::Worker` becomes `VLLM::Worker_TP0` once its groups exist

    def _measure(self, stats: list[Stat]) -> None:
        now = self._now()
        self._processes = len(stats)
        self._rss_bytes = sum(stat.rss_bytes for stat in stats)
        self._compiling = any(stat.comm in COMPILERS for stat in stats)
        stopped = {}
        for stat in stats:
            usage = self._usage.setdefault(stat.ref, _Usage())
            usage.cpu_seconds = stat.cpu_seconds
            if (counters := self._procfs.io(stat.pid)) is not None:
                usage.read_bytes, usage.rchar_bytes = counters.read_bytes, counters.rchar
            if stat.state == "T":
                before = self._stopped.get(stat.ref)
                since = now if before is None else before.since
                stopped[stat.ref] = StoppedProcess(stat.pid, self._procfs.title(stat.pid), since)
        self._stopped = stopped

    # Ends

    def _hold(self, title: str, ref: ProcessRef) -> bool:
        """Watch this very process; False if it has ended already."""
        try:
            pidfd = os.pidfd_open(ref.pid)
        except OSError:
            return False
        if not self._procfs.alive(ref):
            os.close(pidfd)
            return False
        essential = _Essential(title, ref, pidfd)
        self._essentials[ref] = essential
        asyncio.get_running_loop().add_reader(pidfd, self._ended, essential)
        return True

    def _ended(self, essential: _Essential) -> None:
        asyncio.get_running_loop().remove_reader(essential.pidfd)
        leader = self._essentials.get(self._handle.leader) if self._handle.leader is not None else None
        if essential.title == SHIM and leader is not None and leader.ended_at is None:
            if not self._procfs.alive(leader.ref):
                self._ended(leader)  # the shim's end is the consequence; the loop only heard of it first
        if essential.ended_at is not None:
            return
        essential.ended_at = self._clock.now()
        if self._fallen_first is None and self._life.wanted:
            self._fallen_first = essential
        why = f"{essential.title} (pid {essential.ref.pid}) ended"
        happened = life.leader_ended if essential is leader else life.essential_ended
        self._become(happened(self._life, self._now(), why, self._limits))
        self._wake.set()

    def _settle_exits(self, *, final: bool) -> None:
        """Find out how those ended that ended by themselves; `final`: who is unknown now stays so."""
        for one in self._essentials.values():
            if (
                one.ended_at is None
                or one.exit is not None
                or (one.title == SHIM and not self._is_cause(one))
            ):
                continue
            if self._life.killed_since is not None and one.title != exits.LEADER and not self._is_cause(one):
                continue
            one.exit = self._exit_of(one, one.ended_at, final=final)
            if one.exit is not None and self._is_cause(one):
                record = self._exit_record() if one.title == exits.LEADER else None
                failure = None if record is None else record.error
                self._life = replace(self._life, fell=failure or exits.describe(one.exit))
        leader = self._handle.leader
        heard = leader in self._essentials and self._essentials[leader].exit is not None
        if heard or not self._shim_alive():
            self._become(life.last_words_written(self._life, self._now()))
        self._tell()

    def _exit_of(self, one: _Essential, at: Instant, *, final: bool) -> Exit | None:
        ended = exits.Ended(one.title, one.ref.pid, at)
        if one.title == exits.LEADER:
            record = self._exit_record()
            if record is not None:
                return exits.from_shim(self.name, record)
            if self._shim_alive() and not final:
                return None
        found = exits.from_pidfd(self.name, ended, one.pidfd) if one.pidfd >= 0 else None
        if found is not None or not final:
            return found
        lines = RankLog(self._folder.log).last(_LAST_LINES)
        return exits.from_log(self.name, ended, lines) or exits.unknown(self.name, ended)

    def _is_cause(self, one: _Essential) -> bool:
        return one is self._fallen_first

    def _exit_record(self) -> ExitRecord | None:
        try:
            return self._folder.exit_record()
        except StateCorrupt:
            return None

    # Killing

    def _terminate_leader(self) -> None:
        leader = self._handle.leader
        if self._terminated or self._life.state != "stopping" or leader not in self._essentials:
            return
        self._terminated = True
        kill_exactly(self._procfs, leader, signal.SIGTERM)

    def _kill_once(self) -> None:
        now = self._now()
        if self._passes == 0:
            self._shm.note(self.name, [stat.pid for stat in self._target.members()], thorough=True)
            self._collect_lines()
        self._passes += 1
        held = [one.pidfd for one in self._essentials.values() if one.title != SHIM and one.ended_at is None]
        left = kill_pass(self._target, held)
        self._processes = len(left)
        if not left:
            self._end_shim(now)
            if not self._shim_alive():
                self._prove(now)
                return
        else:
            self._empty_since = None
        overdue = (
            self._life.killed_since is not None and now - self._life.killed_since >= self._limits.kill_proof_s
        )
        remains = survivors(self._procfs, self._left_with_shim(left)) if overdue else ()
        self._become(life.killed(self._life, now, tuple(str(one) for one in remains), self._limits))

    def _left_with_shim(self, left: list[Stat]) -> list[Stat]:
        shim = self._procfs.stat(self._handle.shim.pid) if self._handle.shim is not None else None
        return left or ([shim] if shim is not None else [])

    def _end_shim(self, now: float) -> None:
        """A shim goes by itself when its rank is gone and the exit is written; one that does not is helped."""
        if self._empty_since is None:
            self._empty_since = now
        if self._handle.shim is not None and now - self._empty_since >= self._limits.shim_exit_s:
            kill_exactly(self._procfs, self._handle.shim)

    def _prove(self, now: float) -> None:
        remains = self._shm.sweep(self.name)
        self._rss_bytes = 0
        self._compiling = False
        self._stopped = {}
        self._collect_lines()
        self._settle_exits(final=True)
        self._become(life.nothing_left(self._life, now, remains))

    def _collect_lines(self) -> None:
        if self._life.fell is not None:
            self._lines = telling_lines(RankLog(self._folder.log).last(_LAST_LINES))

    def _shim_alive(self) -> bool:
        return self._handle.shim is not None and self._procfs.alive(self._handle.shim)

    # Time and news

    async def _pause(self) -> None:
        timer = asyncio.get_running_loop().call_later(max(0.0, self._pause_s()), self._wake.set)
        await self._wake.wait()
        timer.cancel()
        self._wake.clear()

    def _pause_s(self) -> float:
        limits, now = self._limits, self._now()
        if self._life.over:
            return 0.0
        if self._life.state == "unkillable":
            return limits.unkillable_repeat_s
        if self._life.killed_since is not None:
            return limits.kill_repeat_s * min(self._passes, _KILL_REPEAT_MAX)
        young = self._clock.now().wall - self._handle.started.wall < limits.rank_young_s
        pause = limits.rank_young_scan_s if young else limits.rank_scan_s
        if self._life.state == "fallen":
            pause = _EXIT_POLL_S
        if self._life.kill_at is not None:
            pause = min(pause, self._life.kill_at - now)
        return pause

    def _become(self, new: life.Life) -> None:
        if new.state != self._life.state:
            self._since = self._clock.now()
        self._life = new
        self._tell()

    def _tell(self) -> None:
        news = (
            self._life.state,
            self._life.fell,
            self._life.remains,
            self._lines,
            tuple(one.exit for one in self._essentials.values()),
        )
        if news != self._told:
            self._told = news
            self._on_change(self)

    def _now(self) -> float:
        return self._clock.now().mono

    def _release(self) -> None:
        loop = asyncio.get_running_loop()
        for one in self._essentials.values():
            if one.pidfd >= 0:
                loop.remove_reader(one.pidfd)
                os.close(one.pidfd)
                one.pidfd = -1

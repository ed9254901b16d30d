"""The watch: looks at the node, lets the detectors judge, and acts. It decides nothing itself.

look ──> grade of the memory ──> evict: drop page cache
  │                              shed:  `admit: false`
  │                              end:   the coordinator has half a second, then the rank is killed here
  └──> GPU, fabric, node ──────> verdicts, for people
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from sparkd.clock import Clock
from sparkd.detect import fabric as fabric_of
from sparkd.detect import gpu as gpu_of
from sparkd.detect import node as node_of
from sparkd.detect import plunge as plunge_of
from sparkd.detect import thrash as thrash_of
from sparkd.detect.fabric import GidUse
from sparkd.detect.gpu import Gpu, GpuLook
from sparkd.detect.plunge import Plan, Plunge
from sparkd.detect.thrash import GRADES, Floor, Thrash
from sparkd.records.defaults import DEFAULTS, GIB, Defaults
from sparkd.records.rank import MemoryNeed
from sparkd.records.report import Condemned, RankPhase, Sample
from sparkd.records.verdict import Severity, Verdict
from sparkd_agent.ring import Seen
from sparkd_agent.watch import fabric
from sparkd_agent.watch.cache import Cache
from sparkd_agent.watch.sample import Sampler

log = logging.getLogger("sparkd.agent")

_LINES_KEPT: Final = 50
"""Of the kernel's log, for verdicts."""
_SEEN_KEPT: Final = 100
"""Looks that wait to be written down."""
_AT_ONCE: Final = frozenset({"MEMORY_CRITICAL", "MEMORY_PLUNGE", "HOST_WEDGE_NVRM"})
"""Half a second is too long to ask anybody."""
_REMEDY: Final = (
    "lower gpu-memory-utilization, max-num-seqs or max-model-len, or the floor if it is too strict"
)


@dataclass(frozen=True, slots=True)
class Watched:
    """The rank of this node, as far as its memory goes."""

    name: str
    phase: RankPhase
    loaded_s: float | None
    """Seconds since its weights were loaded; None before."""
    need: MemoryNeed
    before: int | None
    """MemAvailable when no rank existed yet."""
    checkpoint: Path | None
    moving: bool | None
    """Whether the engine completes steps; None: not known here."""
    interface: str | None = None
    """By which it meets the other ranks; None: by none that could fail."""
    gid: GidUse | None = None
    """Which entry of that interface's RDMA port it uses; None: it goes over no RDMA."""


class Acts(Protocol):
    """What the watch asks of its agent. None of it waits."""

    def watched(self) -> Watched | None:
        """The rank that runs here and is wanted."""
        ...

    def tell(self, kind: str, reason: str, rank: str | None) -> None: ...

    def condemn(self, rank: str, why: Condemned, *, at_once: bool) -> None:
        """End the rank for its node's memory: at once, or if the coordinator does not do it in time."""
        ...


class GpuReader(Protocol):
    often: bool
    """Whether a rank is here: then every second counts."""

    def looks(self, at: float) -> tuple[GpuLook, ...] | None: ...

    def state(self, at: float) -> str | None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Surroundings:
    """Where the watch looks beside the sampler. `versions` are those of the driver's module and library;
    `stale_shm` finds files in shared memory that nobody maps. Both run in a thread.
    """

    cache: Cache
    gpu: GpuReader | None = None
    sys: Path = Path("/sys")
    versions: Callable[[], tuple[str | None, str | None]] = lambda: (None, None)
    stale_shm: Callable[[], list[tuple[str, int]]] = list
    before: Verdict | None = None
    """How the boot before this one ended, if not in good order."""


class Watch:
    """`sample` is what reports carry. Call `run` once, in the loop, and `make_room` before a rank starts."""

    def __init__(
        self, acts: Acts, sampler: Sampler, around: Surroundings, clock: Clock, limits: Defaults = DEFAULTS
    ) -> None:
        self._acts = acts
        self._sampler = sampler
        self._around = around
        self._clock = clock
        self._limits = limits
        self._rank: str | None = None
        self._thrash = Thrash()
        self._plunge = Plunge()
        self._gpus: dict[int, Gpu] = {}
        self._fabric = fabric_of.Fabric()
        self._fabric_at = self._read_at = self._node_at = self._evict_at = float("-inf")
        self._left_at = float("-inf")
        """When the last rank was no longer there."""
        self._at_loaded: int | None = None
        self._kills_before: int | None = None
        """The kernel's count of OOM kills when the rank began."""
        self._node: tuple[Verdict, ...] = ()
        self._driver: tuple[Verdict, ...] = ()
        self._stale: tuple[Verdict, ...] = ()
        self._lines: tuple[str, ...] = ()
        self.untold_lines: tuple[str, ...] = ()
        """Of the kernel's log, for the coordinator."""
        self._seen: deque[Seen] = deque(maxlen=_SEEN_KEPT)
        self._evicting: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._due = float("inf")
        self.late_s = 0.0
        """How much later than it should have the last look came."""
        self.looked_at = clock.now().mono
        self._look = sampler.look(self.looked_at)
        self.sample = self._told(None)

    @property
    def thrash(self) -> Thrash:
        return self._thrash

    async def run(self) -> None:
        """Until cancelled."""
        self._due = self._clock.now().mono
        while True:
            # Unless a report has looked meanwhile.
            if self._clock.now().mono >= self.looked_at + self._pause():
                self.look()
            self._set_timer()
            await self._wake.wait()
            self._wake.clear()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = self.looked_at + self._pause()
        pause = max(0.0, self._due - self._clock.now().mono)
        self._timer = asyncio.get_running_loop().call_later(pause, self._wake.set)

    def fresh(self) -> Sample:
        """For a report. While nothing runs here, reports also time the looks: one wake-up for both."""
        age = self._clock.now().mono - self.looked_at
        if self._rank is None and age >= self._fresh_s():
            self.look()
            if self._timer is not None:  # it need not wake up to find that nothing is due
                self._set_timer()
        return self.sample

    def _fresh_s(self) -> float:
        """A sample of a node without a rank is sent again until it is so old.

        Each report brings a new one while somebody waits for memory: a rank that has come, and for a while
        after one has gone.
        """
        limits = self._limits
        brisk = self._clock.now().mono - self._left_at < limits.watch_brisk_s
        if brisk or self._thrash.grade != "calm" or self._acts.watched() is not None:
            return limits.watch_s / 2
        # Just before it would be time for a look by itself.
        return limits.watch_idle_s - 1.5 * limits.watch_s

    def take_seen(self) -> tuple[Seen, ...]:
        """The looks since the last call while a rank was here."""
        seen = tuple(self._seen)
        self._seen.clear()
        return seen

    def lines_told(self, count: int) -> None:
        """The coordinator has the first `count` of the untold ones."""
        self.untold_lines = self.untold_lines[count:]

    def _pause(self) -> float:
        if self._rank is None and self._thrash.grade == "calm":
            return self._limits.watch_idle_s
        return plunge_of.pause_s(self._thrash, self._plunge, self._limits)

    def look(self) -> None:
        """One look, and all that follows from it."""
        now = self.looked_at = self._clock.now().mono
        self.late_s = max(0.0, now - self._due)
        self._look = self._sampler.look(now)
        self._lines = (*self._lines, *self._sampler.lines)[-_LINES_KEPT:]
        self.untold_lines = (*self.untold_lines, *self._sampler.lines)[-_LINES_KEPT:]
        rank = self._acts.watched()
        if (rank.name if rank else None) != self._rank:
            self._begin(rank)
        floor = floor_of(rank, self._limits)
        before = self._thrash
        self._thrash = thrash_of.observe(before, self._look, floor, self._limits)
        if rank is not None:
            self._guard(rank, floor)
        self._act(before, rank, floor, now)
        self._sampler.search(now, short=self._thrash.grade != "calm")
        self._look_around(rank, now)
        self.sample = self._told(rank)
        if rank is not None:
            wall = self._clock.now().wall
            self._seen.append(Seen(wall, rank.name, self.sample, self._sampler.lines))

    def gpus(self) -> tuple[GpuLook, ...] | None:
        """The last look at the GPUs; None where there is none, or where the driver does not answer."""
        reader = self._around.gpu
        return None if reader is None else reader.looks(self._clock.now().mono)

    async def make_room(self, need: MemoryNeed, checkpoint: Path | None) -> None:
        """Before a rank starts: what it needs must be free, not only available (case 1)."""
        memory = self._sampler.memory()
        if memory is None or memory.free >= need.need_bytes:
            return
        measured = thrash_of.measured(self._look, Floor(need.floor_loading_bytes, "before a start"))
        why = f"{measured}: {_gib(need.need_bytes)} are needed by a rank that is to start"
        await self._evict(checkpoint, need.need_bytes, why)

    async def drop_cache(self, why: str) -> str | None:
        """The whole page cache, because the coordinator asks; gives the reason if that is not possible."""
        refused = await asyncio.to_thread(self._around.cache.drop_all)
        if refused is None:
            measured = thrash_of.measured(self._look, floor_of(self._acts.watched(), self._limits))
            self._acts.tell("evict", f"dropped the page cache: {measured}: {why}", self._rank)
        return refused

    async def close(self) -> None:
        for task in (self._evicting, self._sweeping, self._reading):
            if task is not None:
                task.cancel()
        self._sampler.close()
        if self._around.gpu is not None:
            self._around.gpu.close()

    # A rank's memory

    def _begin(self, rank: Watched | None) -> None:
        """Every rank is judged anew: the grade that ended the last one says nothing of the next."""
        if rank is None:
            self._left_at = self.looked_at
        self._rank = rank.name if rank else None
        if self._around.gpu is not None:
            self._around.gpu.often = rank is not None
        if rank is not None:
            self._thrash, self._plunge = Thrash(), Plunge()
            self._wake.set()
        self._fabric = fabric_of.Fabric()
        self._fabric_at = float("-inf")
        self._at_loaded = None
        self._kills_before = self._look.counters.oom_kills

    def _guard(self, rank: Watched, floor: Floor) -> None:
        memory, limits = self._look.memory, self._limits
        spiking = (
            rank.loaded_s is not None and rank.loaded_s < limits.load_spike_s and rank.phase != "serving"
        )
        if not spiking:
            self._at_loaded = None
        elif self._at_loaded is None and memory is not None:
            self._at_loaded = memory.available
        need = rank.need
        spike = need.load_spike_bytes or limits.load_spike_bytes
        plan = Plan(rank.before, need.use_bytes, spike, self._at_loaded)
        self._plunge = plunge_of.observe(self._plunge, self._look, floor, plan, limits)
        if self._plunge.reason is not None:
            self._condemn(rank, "MEMORY_PLUNGE", self._plunge.reason)

    def _act(self, before: Thrash, rank: Watched | None, floor: Floor, now: float) -> None:
        grade, reason = self._thrash.grade, self._thrash.reason
        if _sheds(self._thrash) and not _sheds(before) and rank is not None:
            self._acts.tell("shed", f"{reason}; nothing enforces this until there is a gateway", rank.name)
        elif _sheds(before) and not _sheds(self._thrash) and rank is not None:
            measured = thrash_of.measured(self._look, floor)
            self._acts.tell("admit", f"{measured}: well above it, and for a while", rank.name)
        if grade == "end" and rank is not None:
            self._condemn(rank, self._thrash.verdict, reason)
        memory = self._look.memory
        cached = memory.available - memory.free if memory is not None else None
        if GRADES.index(grade) >= GRADES.index("evict"):
            if cached is None or cached >= self._limits.evict_least_bytes:
                self._begin_evict(rank, None, reason, now, self._limits.evict_pressure_s)
        elif rank is not None and rank.phase in ("launching", "rendezvous", "loading"):
            spike = rank.need.load_spike_bytes
            if memory is not None and memory.free < spike:
                measured = thrash_of.measured(self._look, floor)
                why = f"{measured}: MemFree {_gib(memory.free)} is below the load spike of {_gib(spike)}"
                self._begin_evict(rank, spike, why, now, self._limits.evict_s)

    def _condemn(self, rank: Watched, cause: str, reason: str) -> None:
        self._acts.condemn(rank.name, Condemned(cause, reason), at_once=cause in _AT_ONCE)

    # Page cache

    def _begin_evict(
        self, rank: Watched | None, wanted: int | None, why: str, now: float, pause_s: float
    ) -> None:
        busy = self._evicting is not None and not self._evicting.done()
        if busy or now - self._evict_at < pause_s:
            return
        self._evict_at = now
        checkpoint = rank.checkpoint if rank is not None else None
        self._evicting = asyncio.get_running_loop().create_task(self._evict(checkpoint, wanted, why))

    async def _evict(self, checkpoint: Path | None, wanted: int | None, why: str) -> None:
        """The checkpoint's own pages first; the whole cache if less than `wanted` (bytes) is free then."""
        cache = self._around.cache
        had = self._free()
        if checkpoint is not None:
            await asyncio.to_thread(cache.drop_checkpoint, checkpoint)
        done = "dropped the checkpoint's pages"
        free = self._free()
        if wanted is None or free is None or free < wanted:
            refused = await asyncio.to_thread(cache.drop_all)
            done = "dropped the page cache" if refused is None else f"{done} only ({refused})"
        freed = f"MemFree {_gib(had)} -> {_gib(self._free())}"
        self._acts.tell("evict", f"{done}, {freed}: {why}", self._rank)

    def _free(self) -> int | None:
        memory = self._sampler.memory()
        return None if memory is None else memory.free

    # GPU, fabric, node

    def _look_around(self, rank: Watched | None, now: float) -> None:
        around = self._around
        for look in (around.gpu.looks(now) or ()) if around.gpu is not None else ():
            self._gpus[look.index] = gpu_of.observe(self._gpus.get(look.index, Gpu()), look, self._limits)
        fabric_due = now - self._fabric_at >= self._limits.fabric_look_s
        if rank is not None and rank.interface is not None and fabric_due and _is_over(self._reading):
            self._fabric_at = self._read_at = now
            read = self._read_fabric(rank.name, rank.interface, now)
            self._reading = asyncio.get_running_loop().create_task(read)
        if now - self._node_at >= self._limits.node_look_s:
            self._node_at = now
            self._node = (
                *node_of.other_killers(self._sampler.processes),
                *node_of.cma(*self._sampler.cma()),
            )
            if _is_over(self._sweeping):
                self._sweeping = asyncio.get_running_loop().create_task(self._sweep(idle=rank is None))

    # What drivers may keep waiting is read in threads, and none is begun while its last one waits.

    async def _read_fabric(self, rank: str, interface: str, now: float) -> None:
        seen = await asyncio.to_thread(fabric.look, interface, now, self._around.sys)
        if rank == self._rank:
            self._fabric = fabric_of.observe(self._fabric, seen, self._limits)

    async def _sweep(self, *, idle: bool) -> None:
        self._driver = node_of.driver(*await asyncio.to_thread(self._around.versions))
        if idle:
            self._stale = node_of.stale_shm(await asyncio.to_thread(self._around.stale_shm))

    # What is told

    def _told(self, rank: Watched | None) -> Sample:
        around = self._around
        silent = around.gpu.state(self.looked_at) if around.gpu is not None else None
        return Sample(
            self._look.memory,
            self._sampler.pressure,
            gpu={} if silent is not None else _numbers(self._gpus.get(0, Gpu())),
            shed=self._thrash.reason if rank is not None and _sheds(self._thrash) else None,
            verdicts=(
                *memory_verdicts(self._thrash),
                *(v for gpu in self._gpus.values() for v in self._judged(gpu, rank) if silent is None),
                *fabric_of.verdicts(self._fabric, self._limits, use=rank.gid if rank else None),
                *self._unread(rank),
                *self._node,
                *self._driver,
                *self._stale,
                *((around.before,) if around.before is not None else ()),
                *node_of.kernel_lines(self._lines),
                *node_of.oom_kills(self._unheard_kills()),
                *node_of.late(self.late_s, self._limits),
                *(_gpu_unknown(silent) if silent is not None else ()),
            ),
        )

    def _unread(self, rank: Watched | None) -> tuple[Verdict, ...]:
        """What a driver keeps to itself, if it is still being asked."""
        if rank is None or rank.interface is None or _is_over(self._reading):
            return ()
        return fabric_of.unread(rank.interface, self.looked_at - self._read_at, self._limits)

    def _unheard_kills(self) -> int:
        now = self._look.counters.oom_kills
        if self._sampler.hears_kernel or now is None or self._kills_before is None:
            return 0
        return now - self._kills_before

    def _judged(self, gpu: Gpu, rank: Watched | None) -> tuple[Verdict, ...]:
        return gpu_of.verdicts(gpu, moving=rank.moving if rank else None, limits=self._limits)


def floor_of(rank: Watched | None, limits: Defaults = DEFAULTS) -> Floor:
    """The profile's floor for the rank's phase; the default where nothing runs."""
    if rank is None:
        return Floor(limits.memory_floor_bytes, "no rank")
    serving = rank.phase == "serving"
    bytes_ = rank.need.floor_serving_bytes if serving else rank.need.floor_loading_bytes
    return Floor(bytes_, rank.phase)


def memory_verdicts(thrash: Thrash) -> tuple[Verdict, ...]:
    if GRADES.index(thrash.grade) < GRADES.index("evict"):
        return ()
    severity = Severity.BLOCK if thrash.grade == "end" else Severity.WARN
    titles = {
        "UVM_THRASH": "no free memory, and a UVM thread is busy: a GB10 that is about to freeze",
        "MEMORY_THRASH": "the kernel does not get memory free any more",
        "MEMORY_CRITICAL": "hardly any memory is left",
        "HOST_WEDGE_NVRM": "the GPU's driver gets no memory: the host is about to freeze",
    }
    title = titles.get(thrash.verdict, "memory is short")
    return (Verdict(thrash.verdict, severity, title, evidence=thrash.reason, remedy=_REMEDY),)


def _sheds(thrash: Thrash) -> bool:
    return GRADES.index(thrash.grade) >= GRADES.index("shed")


def _numbers(gpu: Gpu) -> dict[str, float]:
    """The last look at the first GPU: a Spark has one. What is unknown is left out."""
    if not gpu.looks:
        return {}
    last = gpu.looks[-1]
    held = None
    if last.processes is not None:
        held = sum(process.bytes or 0 for process in last.processes)
    shown = {
        "utilization": last.utilization,
        "sm_mhz": last.sm_mhz,
        "watts": last.watts,
        "celsius": last.celsius,
        "memory_total": last.memory_total,
        "memory_used": last.memory_used,
        "memory_of_processes": held,
    }
    return {name: float(value) for name, value in shown.items() if value is not None}


def _gpu_unknown(why: str) -> tuple[Verdict, ...]:
    return (
        Verdict(
            "GPU_UNKNOWN",
            Severity.WARN,
            "nothing is known of the GPU",
            evidence=why,
            remedy="try nvidia-smi on this node; if it hangs too, reboot it",
        ),
    )


def _is_over(task: asyncio.Task[None] | None) -> bool:
    return task is None or task.done()


def _gib(number: int | None) -> str:
    return "unknown" if number is None else f"{number / GIB:.1f} GiB"

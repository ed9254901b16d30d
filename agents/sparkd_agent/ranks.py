"""The ranks that are looked after on this node, by name."""

import asyncio
from collections.abc import Callable, Iterator

from sparkd.clock import Clock
from sparkd.records.defaults import Defaults
from sparkd.records.rank import RankSpec
from sparkd_agent.procfs import ProcFs
from sparkd_agent.running import RunningRank
from sparkd_agent.runtime.base import RankHandle, Runtime
from sparkd_agent.shm import ShmJanitor


class Ranks:
    def __init__(
        self,
        procfs: ProcFs,
        shm: ShmJanitor,
        clock: Clock,
        limits: Defaults,
        on_change: Callable[[RunningRank], None],
    ) -> None:
        self.occupied = asyncio.Event()
        """Set while there is a rank."""
        self._procfs = procfs
        self._shm = shm
        self._clock = clock
        self._limits = limits
        self._on_change = on_change
        self._running: dict[str, RunningRank] = {}
        self._runtime_of: dict[str, Runtime] = {}
        self._early_end: dict[str, Callable[[RunningRank], None]] = {}
        """What is to be done to ranks whose start is on the way, as soon as there is something to end."""
        self._looked_at = clock.now().mono

    def __iter__(self) -> Iterator[RunningRank]:
        return iter(tuple(self._running.values()))

    def __len__(self) -> int:
        return len(self._running)

    def get(self, name: str) -> RunningRank | None:
        return self._running.get(name)

    def runtime_of(self, rank: RunningRank) -> Runtime:
        return self._runtime_of[rank.view.name]

    def supervise(self, runtime: Runtime, handle: RankHandle, spec: RankSpec) -> RunningRank:
        """Look after it from now on."""
        rank = RunningRank(
            handle,
            spec,
            clock=self._clock,
            procfs=self._procfs,
            shm=self._shm,
            on_change=self._on_change,
            limits=self._limits,
        )
        self._running[handle.name] = rank
        self._runtime_of[handle.name] = runtime
        if not self.occupied.is_set():
            self._looked_at = self._clock.now().mono
            self.occupied.set()
        rank.begin()
        return rank

    def end(self, name: str, how: Callable[[RunningRank], None]) -> None:
        """Now, or as soon as its start, which is on the way, has brought something to end."""
        rank = self._running.get(name)
        if rank is None:
            self._early_end[name] = how
        else:
            how(rank)

    def end_early(self, rank: RunningRank) -> None:
        """It was started; if its end was asked for meanwhile, this is it."""
        early = self._early_end.pop(rank.view.name, None)
        if early is not None:
            early(rank)

    def never_came(self, name: str) -> None:
        """Its start failed: there is nothing to end."""
        self._early_end.pop(name, None)

    def forget(self, name: str) -> RunningRank | None:
        self._runtime_of.pop(name, None)
        return self._running.pop(name, None)

    def look(self) -> None:
        """Read new log lines, judge progress."""
        for rank in self:
            rank.look()
        self._looked_at = self._clock.now().mono

    def are_looked_after(self) -> bool:
        late = self._clock.now().mono - self._looked_at > self._limits.watch_stall_s
        return not (late and self.occupied.is_set()) and not any(rank.is_abandoned for rank in self)

    def pids(self) -> dict[str, frozenset[int]]:
        """Of the processes of each rank."""
        return {name: rank.pids() for name, rank in self._running.items()}

    async def close(self) -> None:
        """Stop looking. The ranks live on."""
        for rank in self:
            if rank.task is not None:
                rank.task.cancel()
        for rank in self:
            await rank.close()

"""What the watch saw while ranks were here, into the node's black box: for the boot after this one."""

import asyncio
from collections.abc import Callable

from sparkd.clock import Clock
from sparkd.records.defaults import Defaults
from sparkd.records.report import TaskResult
from sparkd_agent.ring import Ring, Seen


class Diary:
    """It writes in a thread, and never waits for the last writing to end."""

    def __init__(self, ring: Ring, clock: Clock, limits: Defaults) -> None:
        self._ring = ring
        self._clock = clock
        self._limits = limits
        self._written_at = float("-inf")
        self._writing: asyncio.Task[None] | None = None

    def write(self, take: Callable[[], tuple[Seen, ...]]) -> None:
        """What `take` gives, if it is time to."""
        now = self._clock.now().mono
        busy = self._writing is not None and not self._writing.done()
        if busy or now - self._written_at < self._limits.ring_s:
            return
        seen = take()
        if not seen:
            return  # the first one is written at once: a load may take the node down in seconds
        self._written_at = now
        self._writing = asyncio.get_running_loop().create_task(asyncio.to_thread(self._ring.keep, seen))

    async def end(self) -> None:
        """No rank is here any more, in good order. After the last writing: that takes the mark of it away."""
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=self._limits.ring_s)
        await asyncio.to_thread(self._ring.ended_well)

    async def tell(self, task: str) -> TaskResult:
        """What the boot before this one wrote last, as the answer to a task."""
        try:
            records = await asyncio.to_thread(self._ring.records)
        except OSError as error:
            return TaskResult(task, ok=False, error=str(error))
        return TaskResult(task, ok=True, result={"records": records})

"""Questions to drivers and engines, which may not answer for hours."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class OneAtATime(Generic[T]):
    """Asked in a thread. While one hangs no other is begun: it would take a thread more each time."""

    def __init__(self) -> None:
        self._asked: asyncio.Task[T] | None = None

    async def ask(self, question: Callable[[], T], within_s: float) -> T:
        """The answer, also of one that was begun before. Raises TimeoutError, and what that raises."""
        task = self._asked
        if task is None:
            task = self._asked = asyncio.get_running_loop().create_task(asyncio.to_thread(question))
        done, _ = await asyncio.wait((task,), timeout=within_s)
        if not done:
            raise TimeoutError
        if self._asked is task:
            self._asked = None
        return task.result()

"""The event log in memory: what streams read. The store holds the same on disk."""

import asyncio
from collections import deque
from collections.abc import Iterable

from sparkd.records.defaults import DEFAULTS
from sparkd.records.event import Event


class EventLog:
    """Bounded; a reader that fell behind what is kept has to start from the full status (`reset`)."""

    def __init__(self, known: Iterable[Event] = (), keep: int = DEFAULTS.events_kept) -> None:
        self._events: deque[Event] = deque(known, maxlen=keep)
        self._wakes: set[asyncio.Event] = set()
        self.closed = False

    def append(self, events: Iterable[Event]) -> None:
        self._events.extend(events)
        self._wake()

    def close(self) -> None:
        """End every stream: the coordinator is stopping."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        for wake in self._wakes:
            wake.set()

    def newest_id(self) -> str | None:
        return self._events[-1].id if self._events else None

    def recent(self, limit: int, deployment: str | None = None) -> tuple[Event, ...]:
        chosen = [e for e in self._events if deployment in (None, e.deployment)]
        return tuple(chosen[-limit:]) if limit else ()

    def after(self, event_id: str | None) -> tuple[Event, ...] | None:
        """Events later than the one named, or all; None when it is not known here."""
        if event_id is None:
            return tuple(self._events)
        found: list[Event] = []
        for event in reversed(self._events):
            if event.id == event_id:
                return tuple(reversed(found))
            found.append(event)
        return None

    async def wait(self, timeout_s: float) -> None:
        """Until something was appended, at most the time given."""
        wake = asyncio.Event()
        self._wakes.add(wake)
        try:
            await asyncio.wait_for(wake.wait(), timeout_s)
        except TimeoutError:
            pass
        finally:
            self._wakes.discard(wake)

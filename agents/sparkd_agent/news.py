"""What an agent has to tell: events of its own, and exits and task results, which wait in the ledger until
the coordinator has them.
"""

import logging
import sqlite3
import time
from collections.abc import Callable

from sparkd.records.defaults import Defaults
from sparkd.records.report import AgentEvent, Exit, Report, TaskResult
from sparkd_agent.ledger import Ledger

log = logging.getLogger("sparkd.agent")


class News:
    """A ledger that cannot be written keeps nothing from being told: it waits here while this run lives."""

    def __init__(self, ledger: Ledger, limits: Defaults) -> None:
        self._ledger = ledger
        self._limits = limits
        self._events: list[AgentEvent] = []
        self._unsaved: list[Exit | TaskResult] = []
        self._exits: set[tuple[str, int]] = set()
        """(rank, pid) of those that were posted."""

    @property
    def events(self) -> tuple[AgentEvent, ...]:
        return tuple(self._events)

    def tell(self, kind: str, reason: str, rank: str | None) -> None:
        if len(self._events) < self._limits.outbox_batch:
            self._events.append(AgentEvent(kind, reason, time.time(), rank))

    def save(self, write: Callable[[], object]) -> bool:
        """Whether it was written: that it cannot be is told, and stops nobody."""
        try:
            write()
        except sqlite3.Error as error:
            log.error("the ledger cannot be written: %s", error)  # noqa: TRY400 - a full disk needs no trace
            self.tell("ledger", f"the ledger cannot be written: {error}", None)
            return False
        return True

    def post(self, item: Exit | TaskResult) -> None:
        if not self.save(lambda: self._ledger.post(item)):
            self._unsaved = [*self._unsaved, item][-self._limits.outbox_batch :]

    def post_exits(self, exits: tuple[Exit, ...]) -> None:
        """Those that were not posted yet."""
        for exit_ in exits:
            if (exit_.rank, exit_.pid) not in self._exits:
                self._exits.add((exit_.rank, exit_.pid))
                self.post(exit_)

    def forget(self, rank: str) -> None:
        self._exits = {key for key in self._exits if key[0] != rank}

    def waiting(self) -> tuple[tuple[Exit, ...], tuple[TaskResult, ...], tuple[int, ...]]:
        """All exits and results that no coordinator has acknowledged, and the outbox rows they lie in."""
        rows = self._ledger.outbox()
        exits = (row.exit for row in rows if row.exit is not None)
        results = (row.result for row in rows if row.result is not None)
        return (
            (*exits, *(item for item in self._unsaved if isinstance(item, Exit))),
            (*results, *(item for item in self._unsaved if isinstance(item, TaskResult))),
            tuple(row.seq for row in rows),
        )

    def told(self, report: Report, rows: tuple[int, ...], *, kept: bool) -> None:
        """The coordinator has the report; `kept`: its exits and results are committed there."""
        if kept:
            self.save(lambda: self._ledger.acknowledge(rows))
            known = (*report.exits, *report.results)
            self._unsaved = [item for item in self._unsaved if item not in known]
        del self._events[: len(report.events)]

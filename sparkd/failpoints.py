"""Deliberate faults at the durable steps of both daemons, for tests: `docs/failpoints.md` lists every name.

    SPARKD_FAILPOINTS=agent.4-intent-committed:kill,coordinator.4-commit:raise@3

    kill        SIGKILL to this process, in the middle of the step
    sleep=MS    this thread stands still for so many milliseconds, and with it the daemon's loop
    raise       the step fails as a full disk lets it fail
    @N          at the N-th passage only, counted from this process's start; else at every one

Off unless the variable is set when the process starts: then a passage costs one look into an empty dict.
"""

import errno
import itertools
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

VARIABLE: Final = "SPARKD_FAILPOINTS"


class FailpointError(sqlite3.OperationalError, OSError):
    """What a disk and a database raise, in one: a step handles the one that it knows."""


@dataclass(frozen=True, slots=True)
class Failpoint:
    name: str
    act: Callable[[], None]
    at: int | None
    passages: Iterator[int]

    def __call__(self) -> None:
        passage = next(self.passages)
        if self.at in (None, passage):
            self.act()


def passed(name: str) -> None:
    """The process has come to the step of that name. Raises FailpointError where the test asked for it."""
    failpoint = _ARMED.get(name)
    if failpoint is not None:
        failpoint()


def read(text: str) -> dict[str, Failpoint]:
    """The variable's value. Raises ValueError naming the entry that is not understood."""
    return {point.name: point for point in map(_read_one, filter(None, text.split(",")))}


def _read_one(entry: str) -> Failpoint:
    name, _, rest = entry.partition(":")
    action, at, number = rest.partition("@")
    kind, _, value = action.partition("=")
    if not name or (at and not number.isdigit()):
        raise ValueError(f"{VARIABLE}: {entry!r} is not NAME:kill|sleep=MS|raise[@N]")
    passages = itertools.count(1)
    at_passage = int(number) if at else None
    match kind, value:
        case "kill", "":
            return Failpoint(name, _kill, at_passage, passages)
        case "raise", "":
            return Failpoint(name, lambda: _raise(name), at_passage, passages)
        case "sleep", _ if value.isdigit():
            return Failpoint(name, lambda: time.sleep(int(value) / 1000), at_passage, passages)
        case _:
            raise ValueError(f"{VARIABLE}: {entry!r} is not NAME:kill|sleep=MS|raise[@N]")


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _raise(name: str) -> None:
    raise FailpointError(errno.ENOSPC, f"failpoint {name}")


_ARMED: Final = read(os.environ.get(VARIABLE, ""))

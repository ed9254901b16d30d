"""The one kill path for all runtimes: SIGKILL to every process of a rank, until none is left.

No fork, no new file, no D-Bus, no Docker: it must work on a machine that has no memory left. Nothing here
decides *when* to kill; see `life.py`.
"""

import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from sparkd_agent.procfs import ProcessRef, ProcFs, Stat


class Target(Protocol):
    """The processes of one rank, however its runtime knows them."""

    def kill_all(self) -> None:
        """SIGKILL to all at once, where the kernel can do that."""
        ...

    def members(self) -> list[Stat]:
        """What has not ended yet."""
        ...

    def owns(self, pid: int) -> bool:
        """Whether the process that has this pid now is the rank's."""
        ...


@dataclass(frozen=True, slots=True)
class Survivor:
    """A process that is still there, for people."""

    pid: int
    title: str
    state: str
    wchan: str

    def __str__(self) -> str:
        where = f" in {self.wchan}" if self.wchan else ""
        return f"pid {self.pid} ({self.title}) state {self.state}{where}"


def strike(target: Target, held: Iterable[int]) -> None:
    """SIGKILL to what is known of the rank, through descriptors that are open: nothing is looked up.

    `held` are pidfds of processes of the rank, opened earlier.
    """
    target.kill_all()
    for fd in held:
        _send(fd, signal.SIGKILL)


def kill_pass(target: Target, held: Iterable[int] = ()) -> list[Stat]:
    """Send SIGKILL to all that is left of the rank, and return what was left before.

    `held` are pidfds of processes of the rank, opened earlier: they work when no descriptor is to be had.
    To be repeated until it returns nothing; a process that was being forked is found by the next pass.
    """
    strike(target, held)
    left = target.members()
    for stat in left:
        signal_member(target.owns, stat.pid, signal.SIGKILL)
    return left


def signal_member(owns: Callable[[int], bool], pid: int, number: int) -> bool:
    """Signal a process if it is the rank's: open a pidfd, then ask, then signal through the pidfd."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        return owns(pid) and _send(fd, number)
    finally:
        os.close(fd)


def kill_exactly(procfs: ProcFs, ref: ProcessRef, number: int = signal.SIGKILL) -> bool:
    """Signal this very process, never a later one with its pid."""
    return signal_member(lambda pid: procfs.ref(pid) == ref, ref.pid, number)


def survivors(procfs: ProcFs, left: Iterable[Stat]) -> tuple[Survivor, ...]:
    return tuple(
        Survivor(stat.pid, procfs.title(stat.pid)[:80] or stat.comm, stat.state, procfs.wchan(stat.pid))
        for stat in left
    )


def _send(pidfd: int, number: int) -> bool:
    try:
        signal.pidfd_send_signal(pidfd, number)
    except OSError:
        return False
    return True

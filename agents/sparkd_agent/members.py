"""Which processes belong to a rank of the `process` and `systemd` runtimes.

Four marks, because each of them can be missing: descent from the shim (gone with the shim), the variable in
the environment (overwritten by `setproctitle`), the leader's session (left by `setsid`), and having been seen
before. A rank that systemd started has a fifth, which nothing of it can shed: its control group.
"""

import asyncio
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sparkd_agent.cgroup import Cgroup
from sparkd_agent.kill import kill_pass
from sparkd_agent.procfs import FOLDER_VARIABLE, ProcessRef, ProcFs, Stat
from sparkd_agent.runtime.base import RankHandle
from sparkd_agent.strangers import Strangers

_STDOUT_AND_STDERR: Final = (1, 2)


@dataclass(frozen=True, slots=True)
class Marks:
    """Everything by which processes of one rank are known. `seen` are those of the last look."""

    name: str
    folder: str
    shim: ProcessRef | None
    leader: ProcessRef | None
    pipes: tuple[int, ...]
    seen: frozenset[ProcessRef] = frozenset()
    cgroup: str | None = None

    @classmethod
    def of(cls, handle: RankHandle) -> "Marks":
        folder = str(Path(handle.folder).absolute())
        return cls(handle.name, folder, handle.shim, handle.leader, handle.pipes, cgroup=handle.cgroup)


class RankMembers:
    """The kill path's target. Never counts the shim, nor this process."""

    def __init__(self, procfs: ProcFs, marks: Marks) -> None:
        self._procfs = procfs
        self._marks = marks
        self._cgroup = None if marks.cgroup is None else Cgroup(marks.cgroup)
        self._own_pid = os.getpid()
        self._strangers = Strangers(procfs)

    def members(self, *, thorough: bool = True) -> list[Stat]:
        """What has not ended yet.

        `thorough` reads every process's environment too. Without it a living shim counts as the ancestor of
        all: it is a child subreaper, so a daemon that forked twice is its child.
        """
        procfs, marks = self._procfs, self._marks
        shim = marks.shim if marks.shim is not None and procfs.alive(marks.shim) else None
        thorough = thorough or shim is None
        stats = procfs.stats() if thorough else self._strangers.others()
        found = {pid: stats[pid] for pid in self._grouped() if pid in stats}
        if shim is not None:
            for pid in _descendants(stats, shim.pid):
                found[pid] = stats[pid]
        for pid, stat in stats.items():
            if pid in found:
                continue
            if (
                stat.ref in marks.seen
                or _in_session(procfs, marks, stat)
                or (thorough and _is_marked(procfs, marks, pid))
            ):
                found[pid] = stat
        if not thorough:
            self._strangers.learn(stats, found)
        living = [stat for stat in found.values() if not self._spared(stat) and not stat.ended]
        self._marks = replace(marks, seen=frozenset(stat.ref for stat in living))
        return living

    def kill_all(self) -> None:
        if self._cgroup is not None:
            self._cgroup.kill()

    def close(self) -> None:
        if self._cgroup is not None:
            self._cgroup.close()

    def owns(self, pid: int) -> bool:
        """Whether the process that has this pid *now* is the rank's.

        Asked between opening a pidfd and signalling through it: if the pid changed hands in between, either
        the answer is no, or the signal goes to a descriptor whose process is gone.
        """
        procfs, marks = self._procfs, self._marks
        stat = procfs.stat(pid)
        if stat is None or self._spared(stat):
            return False
        return (
            stat.ref in marks.seen
            or stat.ref == marks.leader
            or _descends(procfs, stat, marks.shim)
            or _in_session(procfs, marks, stat)
            or _is_marked(procfs, marks, pid)
            or pid in self._grouped()
        )

    def _grouped(self) -> set[int]:
        return set() if self._cgroup is None else self._cgroup.pids()

    def _spared(self, stat: Stat) -> bool:
        return stat.pid == self._own_pid or stat.ref == self._marks.shim


async def end_all(members: RankMembers, pause_s: float) -> None:
    """Kill a rank that nobody supervises until nothing is left; then, or given up, nothing stays open."""
    try:
        while kill_pass(members):  # noqa: ASYNC110 - nothing tells of an orphan's end
            await asyncio.sleep(pause_s)
    finally:
        members.close()


def _is_marked(procfs: ProcFs, marks: Marks, pid: int) -> bool:
    """By its environment. The name alone would hit another local set's rank on the same machine."""
    if procfs.rank_name(pid) != marks.name:
        return False
    return procfs.environ_value(pid, FOLDER_VARIABLE) == marks.folder


def _is(stat: Stat | None, ref: ProcessRef) -> bool:
    return stat is not None and stat.starttime == ref.starttime


def _descendants(stats: dict[int, Stat], root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for stat in stats.values():
        children.setdefault(stat.ppid, []).append(stat.pid)
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _descends(procfs: ProcFs, stat: Stat, shim: ProcessRef | None) -> bool:
    """Walk up to the shim. A parent is believed only if the child still has it after it was read."""
    while shim is not None and stat.ppid > 1:
        parent = procfs.stat(stat.ppid)
        again = procfs.stat(stat.pid)
        if again is None or again.starttime != stat.starttime:
            return False
        if parent is None or again.ppid != stat.ppid:
            stat = again
            continue
        if parent.ref == shim:
            return True
        stat = parent
    return False


def _in_session(procfs: ProcFs, marks: Marks, stat: Stat) -> bool:
    """Whether it is in the leader's session, and that session is still the rank's.

    The number of a session can be reused once all of it is gone. While the leader is there it is not;
    afterwards only a process that still has the rank's own pipe as stdout or stderr is believed.
    """
    if marks.leader is None or stat.session != marks.leader.pid:
        return False
    if _is(procfs.stat(marks.leader.pid), marks.leader):
        return True
    mine = {f"pipe:[{inode}]" for inode in marks.pipes}
    return any(procfs.descriptor_target(stat.pid, fd) in mine for fd in _STDOUT_AND_STDERR)

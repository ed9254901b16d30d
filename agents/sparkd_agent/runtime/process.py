"""The `process` runtime: a shim in a session of its own, and a folder for each rank."""

import asyncio
import contextlib
import fcntl
import os
import signal
import sys
from pathlib import Path
from typing import Final

from sparkd.errors import RankNotStarted
from sparkd.failpoints import VARIABLE as FAILPOINTS
from sparkd.failpoints import passed
from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd.records.names import parse_rank_name
from sparkd.records.rank import RankSpec
from sparkd_agent.kill import kill_exactly
from sparkd_agent.members import Marks, RankMembers, end_all
from sparkd_agent.procfs import ProcFs
from sparkd_agent.rankfolder import RankFolder
from sparkd_agent.runtime.base import Launch, RankHandle
from sparkd_agent.runtime.handover import (
    make_folder,
    recorded,
    shim_answer,
    shim_spec,
    shim_words,
    spec_file,
)

_SPEC_FD: Final = 3
_LOCK_FD: Final = 4
_ABOVE: Final = 10
"""Descriptors to be passed are moved above the numbers that they get in the shim."""


class ProcessRuntime:
    """Needs a running event loop for `start` and `stop`: it reaps the shims that are its children there."""

    def __init__(self, ranks: str | Path, procfs: ProcFs | None = None, limits: Defaults = DEFAULTS) -> None:
        self._ranks = Path(ranks)
        self._procfs = procfs or ProcFs()
        self._limits = limits
        self._children: dict[int, int] = {}

    async def start(self, spec: RankSpec, launch: Launch) -> RankHandle:
        folder = make_folder(self._ranks, spec)
        try:
            answer_read, answer_write = os.pipe2(os.O_CLOEXEC)
        except OSError as error:
            raise RankNotStarted(f"{spec.name}: no shim could be started: {error}") from error
        try:
            try:
                pid = self._spawn(folder, spec, launch, answer_write)
            except OSError as error:
                raise RankNotStarted(f"{spec.name}: no shim could be started: {error}") from error
            finally:
                os.close(answer_write)
            self._watch_child(pid)
            passed("agent.7-shim-spawned")
            try:
                handle = await shim_answer(folder, answer_read, self._limits.shim_start_s)
            except BaseException:
                await self._abandon(folder, pid)
                raise
            passed("agent.8-shim-answered")
            return handle
        finally:
            os.close(answer_read)

    def list(self) -> list[RankHandle]:
        """A corrupt record is a rank without known processes; raises StateTooNew for a later format."""
        if not self._ranks.is_dir():
            return []
        paths = (
            path for path in sorted(self._ranks.iterdir()) if parse_rank_name(path.name) and path.is_dir()
        )
        folders = map(RankFolder, paths)
        others = (folder for folder in folders if not (folder.unit.exists() or folder.container.exists()))
        return [recorded(folder) for folder in others]

    async def stop(self, handle: RankHandle) -> None:
        if handle.shim is not None and handle.boot == self._procfs.boot_id():
            kill_exactly(self._procfs, handle.shim)
        deadline = asyncio.get_running_loop().time() + self._limits.shim_exit_s
        while handle.shim is not None and handle.shim.pid in self._children:
            if asyncio.get_running_loop().time() > deadline:
                return
            await asyncio.sleep(self._limits.kill_repeat_s)

    def forget(self, name: str) -> None:
        if parse_rank_name(name) is not None:
            RankFolder(self._ranks / name).remove()

    def close(self) -> None:
        """Stop watching children; they live on."""
        for pid in tuple(self._children):
            self._unwatch(pid)

    def _spawn(self, folder: RankFolder, spec: RankSpec, launch: Launch, answer: int) -> int:
        """Start the shim; no environment but failpoints, no argument but the rank's name."""
        with contextlib.ExitStack() as opened:
            spec_fd = spec_file(shim_spec(folder, spec, launch, self._limits, folder_fd=_LOCK_FD))
            opened.callback(os.close, spec_fd)
            lock_fd = folder.lock()
            opened.callback(os.close, lock_fd)
            actions = []
            for source, target in ((answer, 1), (spec_fd, _SPEC_FD), (lock_fd, _LOCK_FD)):
                moved = fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, _ABOVE)
                opened.callback(os.close, moved)
                actions.append((os.POSIX_SPAWN_DUP2, moved, target))
            errors = str(folder.path / "shim.err")
            armed = os.environ.get(FAILPOINTS)
            return os.posix_spawn(
                sys.executable,
                shim_words(_SPEC_FD, folder.name),
                {FAILPOINTS: armed} if armed else {},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 2, errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                    *actions,
                ],
                setsid=True,
                setsigmask=(),
                setsigdef=(signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP),
            )

    async def _abandon(self, folder: RankFolder, pid: int) -> None:
        """Nothing of a rank that was reported as not started may run, nor begin to run later."""
        while (fd := self._children.get(pid)) is not None:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            await asyncio.sleep(self._limits.kill_repeat_s)
        marks = Marks(folder.name, str(folder.path.absolute()), None, None, ())
        await end_all(RankMembers(self._procfs, marks), self._limits.kill_repeat_s)

    def _watch_child(self, pid: int) -> None:
        fd = os.pidfd_open(pid)
        self._children[pid] = fd
        asyncio.get_running_loop().add_reader(fd, self._reap, pid)

    def _reap(self, pid: int) -> None:
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                return
        self._unwatch(pid)

    def _unwatch(self, pid: int) -> None:
        fd = self._children.pop(pid)
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)

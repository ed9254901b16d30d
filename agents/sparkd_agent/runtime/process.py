"""The `process` runtime: a shim in a session of its own, and a folder for each rank."""

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
from pathlib import Path
from typing import Final

import msgspec

from sparkd.clock import Instant
from sparkd.errors import RankNotStarted, StateCorrupt, StateTooNew
from sparkd.failpoints import VARIABLE as FAILPOINTS
from sparkd.failpoints import passed
from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd.records.names import parse_rank_name
from sparkd.records.rank import RankSpec
from sparkd_agent.kill import kill_exactly, kill_pass
from sparkd_agent.members import Marks, RankMembers
from sparkd_agent.procfs import FOLDER_VARIABLE, RANK_VARIABLE, ProcFs
from sparkd_agent.rankfolder import RankFolder
from sparkd_agent.runtime.base import Launch, RankHandle

KEY_VARIABLE: Final = "VLLM_API_KEY"
SHIM: Final = Path(__file__).parent.parent / "shim.py"
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
        folder = RankFolder(self._ranks / spec.name)
        try:
            passed("agent.5-folder")
            folder.create()
            passed("agent.6-folder-made")
            if (key := spec.secrets.get(KEY_VARIABLE)) is not None:
                folder.keep_key(key)
            answer_read, answer_write = os.pipe2(os.O_CLOEXEC)
        except OSError as error:
            raise RankNotStarted(f"{spec.name}: no folder could be made for it: {error}") from error
        try:
            try:
                pid = self._spawn(folder, self._shim_spec(folder, spec, launch), answer_write)
            except OSError as error:
                raise RankNotStarted(f"{spec.name}: no shim could be started: {error}") from error
            finally:
                os.close(answer_write)
            self._watch_child(pid)
            passed("agent.7-shim-spawned")
            try:
                handle = await self._answer(folder, answer_read)
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
        return [_handle(RankFolder(path)) for path in paths]

    async def stop(self, handle: RankHandle) -> None:
        if handle.shim is not None:
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

    def _shim_spec(self, folder: RankFolder, spec: RankSpec, launch: Launch) -> bytes:
        # json, not msgspec: bytes that are no UTF-8 travel as lone surrogates.
        line_bytes = min(self._limits.log_line_bytes, self._limits.log_segment_bytes // 4)
        segments = max(
            2, min(self._limits.log_segments, spec.log_cap_bytes // self._limits.log_segment_bytes)
        )
        body = {
            "name": spec.name,
            "folder": str(folder.path.absolute()),
            "folder_fd": _LOCK_FD,
            "argv": launch.argv,
            "env": {
                **launch.env,
                RANK_VARIABLE: spec.name,
                FOLDER_VARIABLE: str(folder.path.absolute()),
            },
            "cwd": launch.cwd,
            "uid": launch.uid,
            "gid": launch.gid,
            "segment_bytes": self._limits.log_segment_bytes,
            "segments": segments,
            "line_bytes": line_bytes,
        }
        return json.dumps(body).encode()

    def _spawn(self, folder: RankFolder, spec: bytes, answer: int) -> int:
        """Start the shim; no environment but failpoints, no argument but the rank's name."""
        with contextlib.ExitStack() as opened:
            spec_fd = os.memfd_create("sparkd-spec", os.MFD_CLOEXEC)
            opened.callback(os.close, spec_fd)
            os.write(spec_fd, spec)
            os.lseek(spec_fd, 0, os.SEEK_SET)
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
                [sys.executable, "-I", "-S", str(SHIM), str(_SPEC_FD), folder.name],
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

    async def _answer(self, folder: RankFolder, answer: int) -> RankHandle:
        """Wait for the shim to say that its record is written."""
        loop = asyncio.get_running_loop()
        readable: asyncio.Future[None] = loop.create_future()
        loop.add_reader(answer, _settle, readable)
        try:
            await asyncio.wait_for(readable, self._limits.shim_start_s)
        except TimeoutError:
            raise RankNotStarted(
                f"{folder.name}: its shim gave no sign of life for {self._limits.shim_start_s:.0f} s"
            ) from None
        finally:
            loop.remove_reader(answer)
        error = _error_of(os.read(answer, 1 << 16))
        if error is not None:
            raise RankNotStarted(f"{folder.name}: its shim failed: {error or _last_line(folder)}")
        return folder.handle()

    async def _abandon(self, folder: RankFolder, pid: int) -> None:
        """Nothing of a rank that was reported as not started may run, nor begin to run later."""
        while (fd := self._children.get(pid)) is not None:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            await asyncio.sleep(self._limits.kill_repeat_s)
        orphans = RankMembers(self._procfs, Marks(folder.name, str(folder.path.absolute()), None, None, ()))
        while kill_pass(orphans):  # noqa: ASYNC110 - nothing tells of an orphan's end
            await asyncio.sleep(self._limits.kill_repeat_s)

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


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _handle(folder: RankFolder) -> RankHandle:
    try:
        return folder.handle()
    except StateTooNew:
        raise
    except StateCorrupt:
        return RankHandle(folder.name, str(folder.path), boot="", started=Instant(0.0, 0.0))


def _error_of(answer: bytes) -> str | None:
    """None for a shim that started; the text, possibly empty, for one that did not."""
    try:
        return msgspec.json.decode(answer, type=_Answer).error
    except msgspec.MsgspecError:
        return ""


class _Answer(msgspec.Struct):
    error: str | None = None


def _last_line(folder: RankFolder) -> str:
    lines = (folder.path / "shim.err").read_text(errors="replace").splitlines()
    return lines[-1] if lines else "it said nothing"

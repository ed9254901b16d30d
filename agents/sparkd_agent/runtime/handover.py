"""What an agent and a new shim tell each other: the spec in a memory file, the record back through a pipe.

The spec holds secrets. It is in no argument, no environment and on no disk; systemd gets a descriptor.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Final

import msgspec

from sparkd.clock import Instant
from sparkd.errors import RankNotStarted, StateCorrupt, StateTooNew
from sparkd.failpoints import passed
from sparkd.records.defaults import Defaults
from sparkd.records.rank import RankSpec
from sparkd_agent.procfs import FOLDER_VARIABLE, RANK_VARIABLE
from sparkd_agent.rankfolder import RankFolder
from sparkd_agent.runtime.base import Launch, RankHandle

KEY_VARIABLE: Final = "VLLM_API_KEY"
SHIM: Final = Path(__file__).parent.parent / "shim"
"""Its program, a folder: all of the agent that a container gets to see."""


def make_folder(ranks: Path, spec: RankSpec) -> RankFolder:
    """The first act of a start, with the key in it: kept before the rank exists, or a crash would lose it.

    Raises Spent for a name that was used, RankNotStarted.
    """
    folder = RankFolder(ranks / spec.name)
    try:
        passed("agent.5-folder")
        folder.create()
        passed("agent.6-folder-made")
        if (key := spec.secrets.get(KEY_VARIABLE)) is not None:
            folder.keep_key(key)
    except OSError as error:
        raise RankNotStarted(f"{spec.name}: no folder could be made for it: {error}") from error
    return folder


def shim_words(spec_fd: int, name: str, python: str = sys.executable) -> list[str]:
    return [python, "-I", "-S", str(SHIM / "__main__.py"), str(spec_fd), name]


def shim_spec(
    folder: RankFolder,
    spec: RankSpec,
    launch: Launch,
    limits: Defaults,
    *,
    folder_fd: int | None,
    in_unit: bool = False,
) -> bytes:
    """`folder_fd`: the descriptor in the shim that has the folder's lock; None: it takes the lock itself.

    `in_unit`: the shim is a unit of systemd, and makes a control group for the rank below its own.
    """
    # json, not msgspec: bytes that are no UTF-8 travel as lone surrogates.
    account = launch.account
    segments = max(2, min(limits.log_segments, spec.log_cap_bytes // limits.log_segment_bytes))
    body = {
        "name": spec.name,
        "folder": str(folder.path.absolute()),
        "folder_fd": folder_fd,
        "unit": in_unit,
        "argv": launch.argv,
        "env": {
            **launch.env,
            RANK_VARIABLE: spec.name,
            FOLDER_VARIABLE: str(folder.path.absolute()),
        },
        "cwd": launch.cwd,
        "uid": None if account is None else account.uid,
        "gid": None if account is None else account.gid,
        "groups": () if account is None else account.groups,
        "segment_bytes": limits.log_segment_bytes,
        "segments": segments,
        "line_bytes": min(limits.log_line_bytes, limits.log_segment_bytes // 4),
    }
    return json.dumps(body).encode()


def spec_file(body: bytes) -> int:
    """A descriptor of a file in memory that holds the spec, at its beginning."""
    fd = os.memfd_create("sparkd-spec", os.MFD_CLOEXEC)
    os.write(fd, body)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


async def shim_answer(folder: RankFolder, answer: int, patience_s: float) -> RankHandle:
    """Wait for the shim to say through the pipe that its record is written. Raises RankNotStarted."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(answer, _settle, readable)
    try:
        await asyncio.wait_for(readable, patience_s)
    except TimeoutError:
        raise RankNotStarted(f"{folder.name}: its shim gave no sign of life for {patience_s:.0f} s") from None
    finally:
        loop.remove_reader(answer)
    return started(folder, os.read(answer, 1 << 16))


def started(folder: RankFolder, answer: bytes) -> RankHandle:
    """What the shim's answer means. Raises RankNotStarted for one that tells of a failure, or is empty."""
    error = _error_of(answer)
    if error is not None:
        raise RankNotStarted(f"{folder.name}: its shim failed: {error or _last_line(folder)}")
    return folder.handle()


def recorded(folder: RankFolder) -> RankHandle:
    """The rank as its folder knows it; one without known processes if the record cannot be read.

    Raises StateTooNew for a record of a later format.
    """
    try:
        return folder.handle()
    except StateTooNew:
        raise
    except StateCorrupt:
        return RankHandle(folder.name, str(folder.path), boot="", started=Instant(0.0, 0.0))


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _error_of(answer: bytes) -> str | None:
    """None for a shim that started; the text, possibly empty, for one that did not."""
    try:
        return msgspec.json.decode(answer, type=_Answer).error
    except msgspec.MsgspecError:
        return ""


class _Answer(msgspec.Struct):
    error: str | None = None


def _last_line(folder: RankFolder) -> str:
    errors = folder.path / "shim.err"
    lines = errors.read_text(errors="replace").splitlines() if errors.exists() else []
    return lines[-1] if lines else "it said nothing"

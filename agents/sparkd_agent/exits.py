"""How a process of a rank ended, from whoever knows: the shim, the kernel, vLLM's log. Never guessed."""

import fcntl
import os
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sparkd.clock import Instant
from sparkd.records.report import Exit, ExitSource
from sparkd_agent.logs import LogLine
from sparkd_agent.rankfolder import ExitRecord

LEADER: Final = "leader"

# struct pidfd_info, first version (64 bytes): mask, cgroup id, eleven ids, exit code. Linux 6.15 and later.
_PIDFD_INFO: Final = struct.Struct("=QQ11Ii")
_PIDFD_GET_INFO: Final = (3 << 30) | (_PIDFD_INFO.size << 16) | (0xFF << 8) | 11
_PIDFD_INFO_EXIT: Final = 1 << 3

_DIED: Final = re.compile(r"Worker proc \S+ died unexpectedly \(exit code: (-?\d+)\)")


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that is no more, and when that was noticed."""

    title: str
    pid: int
    at: Instant


def from_shim(rank: str, record: ExitRecord) -> Exit:
    return Exit(
        rank, LEADER, record.pid, record.code, record.signal, how="shim", at=record.wall, mono=record.mono
    )


def from_pidfd(rank: str, ended: Ended, pidfd: int) -> Exit | None:
    """What the kernel keeps for a pidfd after its process was reaped, by whomever; None where it does not."""
    status = wait_status(pidfd)
    if status is None:
        return None
    return _exit(rank, ended, os.waitstatus_to_exitcode(status), "pidfd")


def from_log(rank: str, ended: Ended, lines: Iterable[LogLine]) -> Exit | None:
    """The code that vLLM's launcher gives for a worker that died; believed if there is just one such code."""
    if "Worker" not in ended.title:
        return None
    codes = {int(match[1]) for line in lines if (match := _DIED.search(line.text))}
    return _exit(rank, ended, codes.pop(), "log") if len(codes) == 1 else None


def unknown(rank: str, ended: Ended) -> Exit:
    return Exit(rank, ended.title, ended.pid, None, None, how="unknown", at=ended.at.wall, mono=ended.at.mono)


def wait_status(pidfd: int) -> int | None:
    """The wait status behind a pidfd, also of somebody else's child; None while it is not known."""
    buffer = bytearray(_PIDFD_INFO.size)
    _PIDFD_INFO.pack_into(buffer, 0, _PIDFD_INFO_EXIT, *[0] * 13)
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, buffer)
    except OSError:
        return None
    fields = _PIDFD_INFO.unpack(buffer)
    return int(fields[-1]) if fields[0] & _PIDFD_INFO_EXIT else None


def _exit(rank: str, ended: Ended, code: int, how: ExitSource) -> Exit:
    """`code` as Python gives it: negative for a signal."""
    return Exit(
        rank=rank,
        process=ended.title,
        pid=ended.pid,
        code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        how=how,
        at=ended.at.wall,
        mono=ended.at.mono,
    )


def kind_of(exit_: Exit | None) -> int:
    """How well it explains what ended in the same moment, 0 best: a signal, an error, 0, nothing known.

    The kind comes before the time (design §8): who is killed takes others along, who exits rarely kills.
    """
    if exit_ is None:
        return 3
    if exit_.signal is not None:
        return 0
    return 2 if exit_.code in (0, None) else 1


def describe(exit_: Exit) -> str:
    """In plain words: `VLLM::Worker_TP1 (pid 812) was ended by signal 9`."""
    who = f"{exit_.process} (pid {exit_.pid})"
    if exit_.signal is not None:
        return f"{who} was ended by signal {exit_.signal}"
    if exit_.code is not None:
        return f"{who} exited with {exit_.code}"
    return f"{who} ended, nobody knows how"

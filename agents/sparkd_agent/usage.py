"""What a rank's processes use: memory, time, bytes read; and which of them somebody stopped."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sparkd_agent.procfs import ProcessRef, ProcFs, Stat

COMPILERS: Final = frozenset(
    {"as", "c++", "cc", "cc1", "cc1plus", "cicc", "clang", "clang++", "collect2", "cudafe++", "fatbinary"}
    | {"g++", "gcc", "ld", "ninja", "nvcc", "nvlink", "ptxas"}
)


@dataclass(frozen=True, slots=True)
class StoppedProcess:
    """A process in state T: somebody sent it SIGSTOP, and so it neither serves nor obeys SIGTERM."""

    pid: int
    title: str
    since: float
    """Monotonic seconds."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Of all processes of a rank; what only grows covers those that have ended too."""

    processes: int = 0
    rss_bytes: int = 0
    read_bytes: int = 0
    """From disks, mapped files included."""
    rchar_bytes: int = 0
    """Through `read`, page cache included."""
    cpu_seconds: float = 0.0
    compiling: bool = False
    """Whether a compiler is among its processes."""
    stopped: tuple[StoppedProcess, ...] = ()


@dataclass(slots=True)
class _Counters:
    cpu_seconds: float = 0.0
    read_bytes: int = 0
    rchar_bytes: int = 0


class UsageMeter:
    def __init__(self, procfs: ProcFs) -> None:
        self._procfs = procfs
        self._counters: dict[ProcessRef, _Counters] = {}
        self._stopped: dict[ProcessRef, StoppedProcess] = {}

    def measure(self, stats: Iterable[Stat], now: float) -> Usage:
        """`stats` are the rank's processes of this moment, `now` is monotonic."""
        stats = list(stats)
        for stat in stats:
            counters = self._counters.setdefault(stat.ref, _Counters())
            counters.cpu_seconds = stat.cpu_seconds
            if (io := self._procfs.io(stat.pid)) is not None:
                counters.read_bytes, counters.rchar_bytes = io.read_bytes, io.rchar
        self._stopped = {stat.ref: self._stopped_since(stat, now) for stat in stats if stat.state == "T"}
        every = self._counters.values()
        return Usage(
            processes=len(stats),
            rss_bytes=sum(stat.rss_bytes for stat in stats),
            read_bytes=sum(one.read_bytes for one in every),
            rchar_bytes=sum(one.rchar_bytes for one in every),
            cpu_seconds=sum(one.cpu_seconds for one in every),
            compiling=any(stat.comm in COMPILERS for stat in stats),
            stopped=tuple(self._stopped.values()),
        )

    def _stopped_since(self, stat: Stat, now: float) -> StoppedProcess:
        known = self._stopped.get(stat.ref)
        return known or StoppedProcess(stat.pid, self._procfs.title(stat.pid), now)

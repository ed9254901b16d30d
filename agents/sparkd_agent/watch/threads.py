"""Kernel threads whose processor time says something: NVIDIA's driver's, and those that free memory."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sparkd.detect.look import BusyThread
from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd_agent.procfs import TICKS_PER_S
from sparkd_agent.watch.kept import KeptFile

WATCHED: Final = re.compile(
    rb"UVM |vidmem lazy fre|nv_queue$|nv_open_q$|irq/\d+-(?:s-)?nvidia|nvidia-modeset/|kswapd\d|kcompactd\d"
)
"""At the beginning of a name. Kernels before 5.17 cut names to 15 characters (`UVM deferred re`), later ones
do not; a prefix matches both."""
_KTHREAD: Final = 0x00200000
"""PF_KTHREAD: any process may *call* itself `UVM GPU1 BH`."""
_AT_ONCE: Final = 128
"""So many processes are looked at in one go while a scan is under way: less than 2 ms."""


@dataclass(slots=True)
class _Thread:
    name: str
    starttime: bytes
    file: KeptFile
    ticks: int
    at: float
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class _Stat:
    name: bytes
    kernel: bool
    ticks: int
    starttime: bytes


class KernelThreads:
    """`names` are those of all ordinary processes, as of the last scan."""

    def __init__(self, proc: Path = Path("/proc"), limits: Defaults = DEFAULTS) -> None:
        self._proc = str(proc)
        self._limits = limits
        self._threads: dict[int, _Thread] = {}
        self._pending: list[int] = []
        self._scanned_at: float | None = None
        self._visible = False
        self._names: set[str] = set()
        self.names: frozenset[str] = frozenset()

    def look(self, at: float) -> tuple[BusyThread, ...] | None:
        """What each thread used of a core since the look before; None where kernel threads are hidden.

        `at` in monotonic seconds. A thread that is new shows 0: nothing is known of it yet. Opens nothing but
        at the first look: what is decided by it may be a kill, and a new file waits for memory.
        """
        for pid, thread in tuple(self._threads.items()):
            self._measure(pid, thread, at)
        if self._scanned_at is None:
            self._begin_scan(at)
            while self._pending:
                self._scan_some(at)
        if not self._visible:
            return None
        return tuple(BusyThread(thread.name, thread.share) for thread in self._threads.values())

    def search(self, at: float, *, short: bool) -> None:
        """Look for new ones if it is time, some processes at a time; more often while memory is `short`."""
        often = self._limits.threads_scan_short_s if short else self._limits.threads_scan_s
        if self._pending:
            self._scan_some(at)
        elif self._scanned_at is None or at - self._scanned_at >= often:
            self._begin_scan(at)

    def close(self) -> None:
        for thread in self._threads.values():
            thread.file.close()
        self._threads.clear()

    def _measure(self, pid: int, thread: _Thread, at: float) -> None:
        stat = _parse(thread.file.read())
        if stat is None or stat.starttime != thread.starttime:
            thread.file.close()
            del self._threads[pid]
            return
        span = at - thread.at
        thread.share = (stat.ticks - thread.ticks) / TICKS_PER_S / span if span > 0 else 0.0
        thread.ticks, thread.at = stat.ticks, at

    def _begin_scan(self, at: float) -> None:
        self._scanned_at = at
        self._names = set()
        try:
            self._pending = [int(name) for name in os.listdir(self._proc) if name.isdigit()]  # noqa: PTH208 - each second
        except OSError:
            self._pending = []

    def _scan_some(self, at: float) -> None:
        now, self._pending = self._pending[:_AT_ONCE], self._pending[_AT_ONCE:]
        for pid in now:
            if pid not in self._threads:
                self._consider(pid, at)
        if not self._pending:
            self.names = frozenset(self._names)

    def _consider(self, pid: int, at: float) -> None:
        file = KeptFile(f"{self._proc}/{pid}/stat")
        stat = _parse(file.read())
        if stat is not None and stat.kernel:
            self._visible = True
            if WATCHED.match(stat.name):
                name = stat.name.decode(errors="replace")
                self._threads[pid] = _Thread(name, stat.starttime, file, stat.ticks, at)
                return
        elif stat is not None:
            self._names.add(stat.name.decode(errors="replace"))
        file.close()


def _parse(raw: bytes) -> _Stat | None:
    """Names hold spaces and parentheses: the fields start after the last one."""
    opening, closing = raw.find(b"("), raw.rfind(b")")
    fields = raw[closing + 2 :].split(None, 20)
    if closing < 0 or len(fields) < 20:
        return None
    return _Stat(
        name=raw[opening + 1 : closing],
        kernel=bool(int(fields[6]) & _KTHREAD),
        ticks=int(fields[11]) + int(fields[12]),
        starttime=fields[19],
    )

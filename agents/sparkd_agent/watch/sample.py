"""One look at a node: memory, pressure, kernel threads, kernel log. What cannot be read is None, never 0."""

import re
from pathlib import Path
from typing import Final

from sparkd.detect.look import Counters, Look
from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd.records.memory import Memory, Pressure
from sparkd_agent.watch.kept import KeptFile
from sparkd_agent.watch.kmsg import KernelLog
from sparkd_agent.watch.threads import KernelThreads

_MEMINFO: Final = re.compile(
    rb"^(MemTotal|MemAvailable|MemFree|SwapTotal|CmaTotal|CmaFree): +(\d+) kB$", re.MULTILINE
)
_AVG10: Final = re.compile(rb"^(some|full) avg10=([0-9.]+)", re.MULTILINE)
_TOTAL: Final = re.compile(rb"^(some|full) .*total=(\d+)$", re.MULTILINE)
_VMSTAT: Final = re.compile(
    rb"^(allocstall\w*|pgscan_direct|pgsteal_direct|workingset_refault(?:_file)?|pswpin|pswpout|oom_kill|compact_stall)"
    rb" (\d+)$",
    re.MULTILINE,
)
_NO_MEMORY: Final = "NV_ERR_NO_MEMORY"


class Sampler:
    """Looks once a second, for ever. `pressure` and `lines` (of the kernel's log) are of the last look."""

    def __init__(
        self, proc: Path = Path("/proc"), kmsg: Path = Path("/dev/kmsg"), limits: Defaults = DEFAULTS
    ) -> None:
        self._meminfo = KeptFile(proc / "meminfo")
        self._pressure = KeptFile(proc / "pressure" / "memory")
        self._vmstat = KeptFile(proc / "vmstat")
        self._threads = KernelThreads(proc, limits)
        self._log = KernelLog(kmsg)
        self.pressure = Pressure()
        self.lines: tuple[str, ...] = ()

    @property
    def processes(self) -> frozenset[str]:
        """Names of all ordinary processes, as of some seconds ago."""
        return self._threads.names

    @property
    def hears_kernel(self) -> bool:
        """Whether the kernel's log may be read here."""
        return self._log.readable

    def look(self, at: float) -> Look:
        """`at` in monotonic seconds. From the second one on it opens nothing."""
        meminfo, pressure = self._meminfo.read(), self._pressure.read()
        self.pressure = parse_pressure(pressure)
        self.lines = self._log.read()
        return Look(
            at,
            parse_memory(meminfo),
            parse_counters(pressure, self._vmstat.read()),
            self._threads.look(at),
            sum(_NO_MEMORY in line for line in self.lines),
        )

    def search(self, at: float, *, short: bool) -> None:
        """Look for new kernel threads, a little at a time: what was decided by a look comes first."""
        self._threads.search(at, short=short)

    def memory(self) -> Memory | None:
        """Of this moment; another look is not disturbed."""
        return parse_memory(self._meminfo.read())

    def cma(self) -> tuple[int | None, int | None]:
        """CmaTotal and CmaFree, bytes."""
        return parse_cma(self._meminfo.read())

    def close(self) -> None:
        for part in (self._meminfo, self._pressure, self._vmstat, self._threads, self._log):
            part.close()


def parse_memory(meminfo: bytes) -> Memory | None:
    """Bytes; the file counts in KiB."""
    found = _meminfo(meminfo)
    try:
        return Memory(found[b"MemTotal"], found[b"MemAvailable"], found[b"MemFree"])
    except KeyError:
        return None


def parse_cma(meminfo: bytes) -> tuple[int | None, int | None]:
    """CmaTotal and CmaFree, bytes."""
    found = _meminfo(meminfo)
    return found.get(b"CmaTotal"), found.get(b"CmaFree")


def parse_swap(meminfo: bytes) -> int | None:
    """SwapTotal, bytes."""
    return _meminfo(meminfo).get(b"SwapTotal")


def _meminfo(meminfo: bytes) -> dict[bytes, int]:
    return {name: int(kib) * 1024 for name, kib in _MEMINFO.findall(meminfo)}


def parse_pressure(pressure: bytes) -> Pressure:
    """The kernel's own ten-second averages, per cent."""
    found = {kind: float(percent) for kind, percent in _AVG10.findall(pressure)}
    return Pressure(found.get(b"some"), found.get(b"full"))


def parse_counters(pressure: bytes, vmstat: bytes) -> Counters:
    """`allocstall` is counted by zone since 4.10, `workingset_refault` by kind since 5.9."""
    totals = {kind: int(total) for kind, total in _TOTAL.findall(pressure)}
    seen = {name: int(count) for name, count in _VMSTAT.findall(vmstat)}
    stalls = [count for name, count in seen.items() if name.startswith(b"allocstall")]
    swaps = [seen[name] for name in (b"pswpin", b"pswpout") if name in seen]
    return Counters(
        some_us=totals.get(b"some"),
        full_us=totals.get(b"full"),
        stalls=sum(stalls) if stalls else None,
        direct_scanned=seen.get(b"pgscan_direct"),
        direct_freed=seen.get(b"pgsteal_direct"),
        refaults=seen.get(b"workingset_refault_file", seen.get(b"workingset_refault")),
        swapped=sum(swaps) if swaps else None,
        oom_kills=seen.get(b"oom_kill"),
        compactions=seen.get(b"compact_stall"),
    )

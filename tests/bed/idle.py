"""What a daemon costs while nothing happens: memory, processor time, wake-ups, as the kernel counts them."""

import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cost:
    rss_bytes: int
    """At the end of the look."""
    cores: float
    """Of one core: 0.001 is 0.1 %."""
    wakeups_per_s: float
    """Voluntary context switches of all its threads: each is one sleep that ended."""
    seconds: float


def measure_idle(pid: int, seconds: float) -> Cost:
    """Look at a process twice, so many seconds apart."""
    before, begun = _counters(pid), time.monotonic()
    time.sleep(seconds)
    after, took = _counters(pid), time.monotonic() - begun
    return Cost(
        rss_bytes=_status(Path(f"/proc/{pid}"), "VmRSS") * 1024,
        cores=(after[0] - before[0]) / 1e9 / took,
        wakeups_per_s=(after[1] - before[1]) / took,
        seconds=took,
    )


def _counters(pid: int) -> tuple[int, int]:
    """Nanoseconds on a processor (schedstat, see the kernel's sched-stats.rst), and voluntary switches."""
    threads = list(Path(f"/proc/{pid}/task").iterdir())
    ran = sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)
    return ran, sum(_status(thread, "voluntary_ctxt_switches") for thread in threads)


def _status(folder: Path, key: str) -> int:
    lines = (folder / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))

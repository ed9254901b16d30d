"""What the watch costs its node: `.venv/bin/python -m benchmarks.watch [LOOKS] [SECONDS]`.

First so many looks of sampler and detectors in this process, as fast as they go: processor time of one look,
and what the process has grown by. Then a real agent with all watchers and, as root, locked memory, beside a
rank, for so many seconds.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

from sparkd.detect import plunge as plunge_of
from sparkd.detect import thrash as thrash_of
from sparkd.detect.plunge import Plan, Plunge
from sparkd.detect.thrash import Floor, Thrash
from sparkd.records.defaults import MIB
from sparkd_agent.watch import protect
from sparkd_agent.watch.sample import Sampler
from tests.bed.idle import measure_idle
from tests.bed.pressure import LEAST_BYTES, pressed_node

IDLER = """#!{python} -IS
import time
time.sleep(3600)
"""


def main(looks: int, seconds: float) -> int:
    grown, milliseconds = _looks(looks)
    print(f"{looks:,} looks: {milliseconds:.3f} ms of processor time each, grown by {grown / 1024:.0f} KiB")
    with (
        tempfile.TemporaryDirectory(prefix="sparkd-watch-") as name,
        pressed_node(Path(name), IDLER, LEAST_BYTES) as node,
    ):
        measure_idle(node.agent.pid, 5.0)
        cost = measure_idle(node.agent.pid, seconds)
        locked = _field(f"/proc/{node.agent.pid}/status", "VmLck")
    print(f"agent beside a rank, {cost.seconds:.0f} s")
    print(f"  resident  {cost.rss_bytes / MIB:6.1f} MiB    (bound 48), locked {locked / MIB:.1f} MiB")
    print(f"  processor {100 * cost.cores:6.3f} %      (bound 0.5)")
    return 0 if cost.rss_bytes <= 48 * MIB and cost.cores <= 0.005 else 1


def _looks(count: int) -> tuple[int, float]:
    """Bytes that the process has grown by over the second half of the looks, and ms of one look."""
    sampler, thrash, plunge = Sampler(), Thrash(), Plunge()
    floor, plan = Floor(), Plan()
    before, begun = 0, time.thread_time()
    for number in range(count):
        if number == count // 2:
            before = _field("/proc/self/status", "VmRSS")
        look = sampler.look(float(number))  # a second apart, as far as windows and scans go
        thrash = thrash_of.observe(thrash, look, floor)
        plunge = plunge_of.observe(plunge, look, floor, plan)
    spent = time.thread_time() - begun
    grown = _field("/proc/self/status", "VmRSS") - before
    sampler.close()
    return grown, 1000 * spent / count


def _field(path: str, name: str) -> int:
    line = next(line for line in Path(path).read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    protect.small_stacks()
    if os.environ.get("SPARKD_LOCK"):
        print(protect.lock_memory() or "memory locked")
    words = sys.argv[1:]
    sys.exit(main(int(words[0]) if words else 10_000, float(words[1]) if len(words) > 1 else 60.0))

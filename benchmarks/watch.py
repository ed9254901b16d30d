"""What the watch costs its node: `.venv/bin/python -m benchmarks.watch [LOOKS] [SECONDS]`.

First so many looks of sampler and detectors in this process, as fast as they go: processor time of one look,
and what the process has grown by. Then a real agent as a node has it (all watchers, NVML where there is a
driver; as root also locked memory), first alone, then beside a rank, for so many seconds each.
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
from sparkd_agent.local_socket import ask
from sparkd_agent.watch.sample import Sampler
from tests.bed.agent_process import AgentProcess, ScriptedCoordinator, until
from tests.bed.idle import measure_idle
from tests.bed.mapped import mib, resident
from tests.bed.pressure import LEAST_BYTES, pressed_node

BOUND_BYTES = 48 * MIB
BOUND_CORES = 0.005

IDLER = """#!{python} -IS
import time
time.sleep(3600)
"""


def main(looks: int, seconds: float) -> int:
    grown, milliseconds = _looks(looks)
    print(f"{looks:,} looks: {milliseconds:.3f} ms of processor time each, grown by {grown / 1024:.0f} KiB")
    guest = os.getuid() != 0
    with (
        tempfile.TemporaryDirectory(prefix="sparkd-watch-") as name,
        ScriptedCoordinator() as script,
    ):
        agent = AgentProcess(Path(name), script.url, guest=guest)
        agent.start()
        try:
            until(lambda: script.hellos, "a hello")
            _measure(agent, "alone", seconds)
        finally:
            agent.end()
    with (
        tempfile.TemporaryDirectory(prefix="sparkd-watch-") as name,
        pressed_node(Path(name), IDLER, LEAST_BYTES, guest=guest) as node,
    ):
        return _measure(node.agent, "beside a rank", seconds)


def _measure(agent: AgentProcess, how: str, seconds: float) -> int:
    pid = agent.pid
    measure_idle(pid, 5.0)  # what a start leaves behind
    early = resident(pid)
    cost = measure_idle(pid, seconds)
    now = resident(pid)
    watch = ask(agent.folder / "agent.sock", {"ask": "status"})["watch"]
    print(f"agent {how}, {cost.seconds:.0f} s; GPU: {watch['sample']['gpu'] or 'none'}")
    grown = mib(now.total - early.total)
    print(f"  resident  {mib(now.total)} MiB     (bound {mib(BOUND_BYTES)}), grown by {grown}")
    print(f"  {now}")
    print(f"  processor {100 * cost.cores:.3f} %      (bound {100 * BOUND_CORES})")
    return 0 if now.total <= BOUND_BYTES and cost.cores <= BOUND_CORES else 1


def _looks(count: int) -> tuple[int, float]:
    """Bytes that the process has grown by over the second half of the looks, and ms of one look."""
    sampler, thrash, plunge = Sampler(), Thrash(), Plunge()
    floor, plan = Floor(), Plan()
    before, begun = 0, time.thread_time()
    for number in range(count):
        if number == count // 2:
            before = _resident_now()
        look = sampler.look(float(number))  # a second apart, as far as windows and scans go
        thrash = thrash_of.observe(thrash, look, floor)
        plunge = plunge_of.observe(plunge, look, floor, plan)
        sampler.search(float(number), short=False)
    spent = time.thread_time() - begun
    grown = _resident_now() - before
    sampler.close()
    return grown, 1000 * spent / count


def _resident_now() -> int:
    """Of this process; its smaps are read in more memory than a look takes."""
    return int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0]) * 1024


if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(main(int(words[0]) if words else 10_000, float(words[1]) if len(words) > 1 else 60.0))

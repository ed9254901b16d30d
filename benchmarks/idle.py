"""What an idle agent costs its node: `.venv/bin/python -m benchmarks.idle [SECONDS]`.

A real coordinator and a real agent, connected, nothing deployed; as root it protects itself, as on a node.
Wake-ups are voluntary context switches, processor time is schedstat's.
"""

import os
import sys
import tempfile
from pathlib import Path

from tests.bed.agent_process import HOLDER, AgentProcess, until
from tests.bed.coordinator import Coordinator
from tests.bed.idle import measure_idle


def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory(prefix="sparkd-idle-") as name:
        folder = Path(name)
        coordinator = Coordinator(folder, {"node-1": "node-1"}, holder=HOLDER)
        agent = AgentProcess(folder, f"http://127.0.0.1:{coordinator.agents}", guest=os.getuid() != 0)
        try:
            coordinator.start()
            agent.start()
            until(lambda: coordinator.ask("GET", "/v1/nodes").json[0]["state"] == "alive", "a hello")
            measure_idle(agent.pid, 3.0)  # what a start leaves behind is no idleness
            cost = measure_idle(agent.pid, seconds)
        finally:
            agent.end()
            coordinator.end()
    print(f"idle agent, {cost.seconds:.0f} s")
    print(f"  resident   {cost.rss_bytes / 2**20:5.1f} MiB    (bound 36)")
    print(f"  processor  {cost.cores * 100:5.3f} %      (bound 0.1)")
    print(f"  wake-ups   {cost.wakeups_per_s:5.2f} a second (bound 3)")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)

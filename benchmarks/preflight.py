"""How long a preflight of eight nodes takes: `.venv/bin/python -m benchmarks.preflight [LOOKS]`.

A real coordinator and eight real agents of this machine, each with a checkpoint of its own, 200 GB in 36
shards (sparse files: only headers are read). All look at once at one machine; Sparks have a processor each.
"""

import signal
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec

from sparkd.profile.lookup import load_profile
from sparkd.profile.merge import resolve
from sparkd.records.preflight import Preflight
from tests.bed.agent_process import HOLDER, AgentProcess, until
from tests.bed.coordinator import Coordinator
from tests.bed.stand_in import make_stand_in
from tests.bed.weights import checkpoint

NAMES = tuple(f"node-{number}" for number in range(1, 9))
SHARDS = 36
BOUND_S = 3.0


def main(looks: int) -> int:
    intent = resolve(load_profile("tiny"), sets=("layout.tp=8",)).intent
    body = {"name": "tiny", "intent": msgspec.to_builtins(intent)}
    took = []
    with tempfile.TemporaryDirectory(prefix="sparkd-preflight-") as name, ExitStack() as stack:
        folder = Path(name)
        coordinator = Coordinator(folder, {name: name for name in NAMES}, holder=HOLDER)
        python = make_stand_in(folder / "engine")
        coordinator.start()
        stack.callback(coordinator.end, signal.SIGKILL)
        for node in NAMES:
            checkpoint(folder / node / "tiny", SHARDS, 200_000_000_000 // SHARDS)
            url = f"http://127.0.0.1:{coordinator.agents}"
            agent = AgentProcess(
                folder / node, url, node, guest=False, python=python, fabric_address="127.0.0.1"
            )
            agent.start()
            stack.callback(agent.end)
        until(
            lambda: {one["state"] for one in coordinator.ask("GET", "/v1/nodes").json} == {"alive"}, "hellos"
        )
        for _ in range(looks):
            begun = time.monotonic()
            answer = coordinator.ask("POST", "/v1/preflight", body)
            took.append(time.monotonic() - begun)
            found = msgspec.json.decode(answer.body, type=Preflight)
            known = sum(one.machine is not None and one.models is not None for one in found.members)
            print(f"{took[-1]:.2f} s, {known} of {len(found.members)} nodes told everything")
    print(f"median {statistics.median(took):.2f} s, worst {max(took):.2f} s (bound {BOUND_S:.0f} s)")
    return 0 if max(took) < BOUND_S else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10))

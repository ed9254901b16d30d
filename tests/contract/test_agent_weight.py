"""The agent shares its node's memory with the model: what it loads, and what it costs while nothing happens.

The bounds of the design are 36 MiB, 0.1 % of a core and 3 wake-ups a second; `benchmarks/idle.py` prints the
figures (docs/measurements.md). Noise gets three times as much here: the machine runs other tests as well.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bed.agent_process import HOLDER, agent_process, until
from tests.bed.coordinator import Coordinator
from tests.bed.idle import measure_idle

HEAVY = {
    *("torch", "vllm", "fastapi", "starlette", "paramiko", "pydantic", "pydantic_core", "httpx2"),
    *("cryptography", "yaml", "typer", "rich", "uvicorn", "click", "prometheus_client"),
}
NOISE = 3
LOOK_S = 20.0

# psutil is loaded for one sentence, and only then; an SSL context of the system's own would cost 5 MiB.
LOADED = """
import json, os, sys, threading
import sparkd_agent.__main__
print(json.dumps({
    "modules": sorted({name.partition(".")[0] for name in sys.modules}),
    "threads": threading.active_count(),
    "files": len(os.listdir("/proc/self/fd")),
    "children": open(f"/proc/self/task/{os.getpid()}/children").read(),
}))
"""


def test_importing_the_daemon_loads_what_it_needs_and_starts_nothing(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-P", "-c", LOADED], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    found = json.loads(run.stdout)
    assert HEAVY & set(found["modules"]) == set()
    assert {"h11", "msgspec", "sqlite3", "asyncio"} <= set(found["modules"]), "all that the daemon loads"
    # 0, 1, 2, and the folder that is being listed.
    assert (found["threads"], found["files"], found["children"]) == (1, 4, "")
    assert run.stderr == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.timeout(200)
def test_an_idle_agent_is_hardly_there(tmp_path: Path) -> None:
    coordinator = Coordinator(tmp_path, {"node-1": "node-1"}, holder=HOLDER)
    coordinator.start()
    try:
        with agent_process(tmp_path, f"http://127.0.0.1:{coordinator.agents}") as agent:
            until(lambda: coordinator.ask("GET", "/v1/nodes").json[0]["state"] == "alive", "a hello")
            measure_idle(agent.pid, 2.0)  # what a start leaves behind is no idleness
            cost = measure_idle(agent.pid, LOOK_S)
            for _ in range(2):
                # Memory pressure of a test beside this one is the node's to an agent, which then looks often.
                if cost.wakeups_per_s > NOISE * 3 or cost.cores > NOISE * 0.001:
                    cost = measure_idle(agent.pid, LOOK_S)
            modules = Path(f"/proc/{agent.pid}/maps").read_text()
    finally:
        coordinator.end()
    assert cost.rss_bytes <= 36 << 20
    assert 0.5 < cost.wakeups_per_s <= NOISE * 3, "it beats once a second, and hardly more often wakes"
    assert cost.cores <= NOISE * 0.001
    assert not [name for name in ("psutil", "pydantic_core", "torch") if f"/{name}/" in modules]

"""`sparkd stacks` of a gang that serves: it tells of every process, and stops nothing."""

import json
import os
import subprocess
import sys

from tests.bed.local_set import Bed, ask


def test_stacks_of_all_ranks(bed: Bed, name: str) -> None:
    deployment = bed.up(name)
    deployment.ready()
    before = {process.pid for process in deployment.all_processes()}
    words = [sys.executable, "-m", "sparkd", "stacks", name, "-o", "json"]
    run = subprocess.run(words, env={**os.environ, **bed.env}, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    assert [(one["rank"], one["node"], one["error"]) for one in told] == [
        (0, "local-1", None),
        (1, "local-2", None),
    ]
    for one in told:
        titles = {process["title"] for process in one["processes"]}
        assert any("VLLM::Worker" in title for title in titles), titles
        (worker,) = [process for process in one["processes"] if "VLLM::Worker" in process["title"]]
        assert any("worker.py" in line for line in worker["lines"]), worker
    assert {process.pid for process in deployment.all_processes()} == before
    assert "84" in ask(deployment)
    one = subprocess.run(
        [*words[:-2], "--rank", "1"],
        env={**os.environ, **bed.env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "rank 1 on local-2" in one.stdout
    assert "rank 0" not in one.stdout

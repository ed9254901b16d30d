"""What is written of a fall: by whom, why, the last minutes of all nodes, in the database and in a file."""

import json
import os
import signal
import subprocess
import sys
from typing import Any

from tests.bed.local_set import Bed, until


def explain(bed: Bed, *words: str) -> str:
    run = subprocess.run(
        [sys.executable, "-m", "sparkd", "explain", *words],
        env={**os.environ, **bed.env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_an_incident_holds_the_last_minutes_of_all_nodes(bed: Bed, name: str) -> None:
    deployment = bed.up(name)
    deployment.ready()
    victim = deployment.process(1, "VLLM::Worker")
    os.kill(victim.pid, signal.SIGKILL)
    deployment.ready(generation=2)

    def kinds() -> set[str]:
        return {entry["kind"] for entry in deployment.incidents()[-1]["timeline"]}

    until(lambda: {"exit", "event", "line", "sample"} <= kinds(), "an incident with everything in it", 20)
    told: dict[str, Any] = json.loads(explain(bed, f"{name}/1", "-o", "json"))
    assert (told["cause"]["id"], told["cause"]["rank"]) == ("PROCESS_KILLED", 1)
    assert all(one["rank"] == 0 for one in told["secondary"]), told["secondary"]
    assert any("SIGKILL" in gap for gap in told["not_known"])
    (incident,) = told["incidents"]
    timeline = incident["timeline"]
    assert [entry["at"] for entry in timeline] == sorted(entry["at"] for entry in timeline)
    assert {entry["node"] for entry in timeline if entry["kind"] == "sample"} == {"local-1", "local-2"}
    assert any(str(victim.pid) in entry["text"] for entry in timeline if entry["kind"] == "exit")
    (file,) = bed.folder.rglob(f"incidents/{name}-g1.json")
    assert json.loads(file.read_text())["incident"] == incident
    assert file.stat().st_mode & 0o077 == 0 or file.parent.stat().st_mode & 0o077 == 0

    shown = explain(bed, f"{name}/1")
    assert f"{name}/1" in shown
    assert "rank 1 on local-2" in shown
    assert "not known: who sent SIGKILL" in shown
    assert "the last minutes:" in shown

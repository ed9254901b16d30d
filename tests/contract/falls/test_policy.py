"""How often a gang may fall, and which falls no retry cures."""

import os
import signal
import time
from pathlib import Path

from tests.bed.local_set import Bed, Watch, all_gone
from tests.bed.stand_in import configure


def test_past_the_budget_it_is_failed_with_the_first_failing_rank(bed: Bed, engine: Path, name: str) -> None:
    configure(engine, EXIT="rendezvous:7@1")
    watch, since = Watch(bed.client, name), time.monotonic()
    deployment = bed.up(name, "restart.budget=2")
    failed = deployment.until("failed")
    assert failed.generation == failed.falls == 3
    assert [e.to for _, e in watch.seen].count("recovering") == 2
    assert watch.reached("failed", since)
    assert "fell 3 times, budget 2" in failed.reason
    fall = failed.last_fall
    assert fall is not None
    assert fall.exit is not None
    assert (fall.rank, fall.node, fall.generation, fall.exit.code) == (1, "local-2", 3, 7)
    assert "exited with 7" in fall.reason
    assert any("headless multiproc executor" in line for line in fall.lines)
    assert len(deployment.incidents()) == 3
    assert not deployment.all_processes()

    configure(engine, EXIT=None)
    bed.up(name)
    assert deployment.ready(generation=4).falls == 0


def test_a_cause_that_a_retry_cannot_cure_is_not_retried(bed: Bed, engine: Path, name: str) -> None:
    # Rank 0 is late, so that rank 1's worker is known by its title before it fails, as a real one is.
    configure(engine, LOAD_FILE="/no/such/model.safetensors@1", BOOT_S="1.5@0")
    deployment = bed.up(name)
    failed = deployment.until("failed")
    assert (failed.generation, failed.falls) == (1, 1)
    assert "gave up: a retry cannot cure this" in failed.reason
    assert "rank 1 on local-2 fell: VLLM::Worker" in failed.reason
    assert "exited with 1" in failed.reason
    assert failed.last_fall is not None
    assert (failed.last_fall.rank, failed.last_fall.cause) == (1, "MODEL_MISSING")
    assert any("/no/such/model.safetensors" in line for line in failed.last_fall.lines)
    assert failed.last_fall.remedy
    all_gone(deployment.all_processes(1))


def test_what_a_killed_worker_logged_before_does_not_forbid_a_retry(bed: Bed, name: str) -> None:
    """The word for a missing file is in its log all the time: it is the name of the model."""
    (bed.models / "FileNotFoundError").mkdir(exist_ok=True)
    (bed.models / "FileNotFoundError" / "config.json").write_text("{}")
    deployment = bed.up(name, "model.path=FileNotFoundError")
    deployment.ready()
    os.kill(deployment.process(1, "VLLM::Worker").pid, signal.SIGKILL)
    deployment.ready(generation=2)
    fall = deployment.incidents()[0]["fall"]
    assert any("FileNotFoundError" in line for line in fall["lines"])
    assert fall["cause"] == "PROCESS_KILLED"

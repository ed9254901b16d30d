"""Case 8: a rank that stops answering and lives on (SIGSTOP)."""

import os
import signal
import time

from tests.bed.cluster import PROC, Cluster, Sighting, until
from tests.bed.stand_in import configure

PULSE = ("ready.pulse.silence_s=1", "ready.pulse.timeout_s=2")


def worker_of(bed: Cluster, name: str, node: int) -> Sighting:
    def look() -> Sighting | None:
        seen = [s for s in bed.sightings() if s.deployment == name and s.node == node]
        return next((s for s in seen if "VLLM::Worker" in PROC.title(s.ref.pid)), None)

    found = until(look, "a worker")
    assert found is not None
    return found


def test_a_stopped_worker_is_found_by_the_pulse(bed: Cluster, name: str) -> None:
    bed.client.up(name, bed.intent(*PULSE))
    generation = bed.until(name, "ready").generation
    stopped = worker_of(bed, name, 2)
    os.kill(stopped.ref.pid, signal.SIGSTOP)
    again = bed.until(name, "ready", "failed", generation=generation + 1)
    assert again.phase == "ready"
    assert again.last_fall is not None
    assert again.last_fall.cause == "ENGINE_WEDGED"
    assert again.last_fall.rank == 1
    assert f"(pid {stopped.ref.pid}) is stopped" in again.last_fall.reason, "it says who stood still"
    assert not PROC.alive(stopped.ref), "SIGKILL ends a stopped process too"
    told = bed.client.incidents(name)[0]["stacks"]
    assert [(one["rank"], one["error"]) for one in told] == [(0, None), (1, None)]
    silent = [one for rank in told for one in rank["processes"] if not one["lines"]]
    assert [(one["pid"], one["silent"].split(" in ")[0]) for one in silent] == [(stopped.ref.pid, "state T")]
    living = [one["title"] for rank in told for one in rank["processes"] if one["lines"]]
    assert any("VLLM::Worker" in title for title in living), "the survivor's stack shows what it waits for"


def test_a_pause_while_loading_is_no_wedge(bed: Cluster, name: str) -> None:
    """Longer than pulse, silence and the verdict about a stopped process would need."""
    configure(bed.engine, BOOT_S=3)
    bed.client.up(name, bed.intent(*PULSE))
    bed.until(name, "loading", "warming")
    paused = worker_of(bed, name, 2)
    os.kill(paused.ref.pid, signal.SIGSTOP)
    end = time.monotonic() + 12
    while time.monotonic() < end:
        seen = bed.status(name)
        assert seen is not None
        assert (seen.generation, seen.falls) == (1, 0), seen.reason
        time.sleep(0.2)
    os.kill(paused.ref.pid, signal.SIGCONT)
    ready = bed.until(name, "ready", "failed", "recovering")
    assert (ready.phase, ready.generation) == ("ready", 1), ready.reason

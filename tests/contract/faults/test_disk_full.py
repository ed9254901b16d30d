"""Case 15: a state folder on a disk that is full, the coordinator's and an agent's."""

import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sparkd.errors import Unavailable
from tests.bed.cluster import Cluster, cluster, until
from tests.bed.disk import full, small_disk
from tests.bed.stand_in import configure

SIZE_BYTES = 2 << 20


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Cluster]:
    """The coordinator and the third agent have a small disk each."""
    with cluster(tmp_path, 3) as bed:
        bed.coordinator_state.rename(tmp_path / "before")
        with (
            small_disk(bed.coordinator_state, SIZE_BYTES) as one,
            small_disk(bed.agent_state(3), SIZE_BYTES) as two,
        ):
            if not (one and two):
                pytest.skip("mounting a small disk needs root")
            for file in (tmp_path / "before").iterdir():
                (bed.coordinator_state / file.name).write_bytes(file.read_bytes())
            configure(bed.engine, BOOT_S=0.1, EXIT_DELAY_S=0.2)
            bed.start()
            yield bed
            for daemon in bed.daemons:
                daemon.end()
            bed.close()


def health(bed: Cluster) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{bed.client.base_url}/healthz", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_coordinators_disk(disks: Cluster) -> None:
    """No start that was not committed; what runs is left alone; it says so; it recovers by itself."""
    bed = disks
    bed.client.up("a", bed.intent())
    before = bed.until("a", "ready")
    with full(bed.coordinator_state):
        with pytest.raises(Unavailable, match="cannot write its database"):
            bed.client.up("b", bed.intent("layout.tp=1"))
        code, body = health(bed)
        assert (code, "degraded" in body, "full" in body) == (503, True, True)
        time.sleep(1.5)  # more than a beat: time for an uncommitted start to arrive, if there were one
        assert {s.deployment for s in bed.sightings()} == {"a"}
        after = bed.client.deployment("a")
        assert [r.pid for r in after.ranks] == [r.pid for r in before.ranks]
        assert health(bed)[0] == 503
    until(lambda: health(bed)[0] == 200, "health to come back without a restart")
    assert bed.coordinator.lives == 1
    bed.client.up("b", bed.intent("layout.tp=1"))
    bed.until("b", "ready")
    assert bed.client.deployment("a").generation == before.generation


def test_a_fall_on_a_full_disk_is_no_ready(disks: Cluster) -> None:
    """It cannot be written down, so nothing is started; but nobody is told that all is well, either."""
    bed = disks
    bed.client.up("a", bed.intent())
    generation = bed.until("a", "ready").generation
    with full(bed.coordinator_state):
        os.kill(next(s.ref.pid for s in bed.sightings() if s.node == 2 and s.leader), signal.SIGKILL)
        until(lambda: health(bed)[0] == 503, "the fall to be unwritable")
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(
                urllib.request.Request(
                    f"{bed.client.base_url}/v1/deployments/a/ready",
                    headers={"authorization": f"Bearer {bed.token}"},
                ),
                timeout=10,
            )
    assert bed.until("a", "ready", "failed", generation=generation + 1).phase == "ready"


def test_an_agents_disk(disks: Cluster) -> None:
    """The preflight says so. Waived, its start is refused and said why; its rank from before is ended all
    the same when asked to.
    """
    bed = disks
    dared = replace(bed.intent(), forced=("DISK_FULL",))
    bed.client.up("a", bed.intent("layout.tp=1", "restart.budget=0"))
    placed = bed.until("a", "ready").ranks[0].node
    assert placed == "local-1"
    bed.client.up("b", dared)
    running = bed.until("b", "ready")
    assert [r.node for r in running.ranks] == ["local-2", "local-3"]
    with full(bed.agent_state(3)):
        bed.client.restart("b", running.generation)
        fall = until(lambda: bed.client.deployment("b").last_fall, "the refused start to be told")
        assert fall.node == "local-3"
        assert "full" in fall.reason
        until(
            lambda: not any(s.node == 3 and s.generation == running.generation for s in bed.sightings()),
            "the old rank to be ended on a full disk",
        )
        bed.until("b", "failed")
        bed.client.up("b", replace(dared, forced=()))
        until(lambda: [v.id for v in bed.client.deployment("b").verdicts] == ["DISK_FULL"], "the preflight")
        assert bed.until("b", "failed").reason.startswith("local-3: no room is left on a disk")
    if bed.until("b", "ready", "failed").phase == "failed":
        bed.client.up("b", bed.intent())
    assert bed.until("b", "ready").generation > running.generation
    assert bed.agents[2].lives == 1

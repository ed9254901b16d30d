"""`up` as a user lives through it: what is shown while ranks boot, Ctrl-C, again, and otherwise."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from sparkd.records.status import DeploymentStatus
from tests.bed.local_set import Bed, Deployment, local_bed, until
from tests.bed.ports import free_port
from tests.bed.stand_in import configure, make_stand_in

UNFINISHED = {"pending", "preflight", "launching", "loading", "warming", "recovering", "stopping"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("up")
    (folder / "models" / "tiny").mkdir(parents=True)
    (folder / "models" / "tiny" / "config.json").write_text("{}")
    with local_bed(folder, make_stand_in(folder / "engine"), folder / "models") as bed:
        yield bed


@pytest.fixture
def bed(shared: Bed) -> Iterator[Bed]:
    (shared.folder / "engine" / "settings.json").unlink(missing_ok=True)
    yield shared
    for one in shared.client.status().deployments:
        Deployment(shared, one.name).down()


def start(bed: Bed, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "sparkd", *words],
        env=bed.env,
        cwd=bed.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(bed: Bed, *words: str, expect: int = 0) -> str:
    with start(bed, *words) as process:
        out, err = process.communicate(timeout=100)
    assert process.returncode == expect, out + err
    return out + err


def words(name: str, *sets: str) -> tuple[str, ...]:
    # `down` of the last deployment would end the set that the tests of this file share.
    wished = [word for one in (f"api.port={free_port()}", *sets) for word in ("--set", one)]
    return ("up", "tiny", "--name", name, *wished)


def test_a_rank_that_prints_nothing_shows_its_progress(bed: Bed) -> None:
    """Rank 1 reads its checkpoint for seconds without a line; its bytes are its progress."""
    weights = bed.folder / "weights"
    size = 64 << 20
    weights.write_bytes(os.urandom(1 << 20) * (size >> 20))
    configure(bed.folder / "engine", LOAD_FILE=f"{weights}@1", LOAD_S=5)
    deployment = bed.up("silent", f"memory.weights_gib={size / 2**30}")
    seen: list[DeploymentStatus] = []

    def ready() -> bool:
        seen.append(deployment.status())
        return seen[-1].phase == "ready"

    until(ready, "the silent rank to come up")
    loading = [one for one in seen if len(one.ranks) == 2 and one.ranks[1].phase == "loading"]
    percents = [one.ranks[1].progress.percent for one in loading]
    shown = [percent for percent in percents if percent is not None]
    assert shown == sorted(shown)
    assert len(set(shown)) > 3, percents
    assert max(shown) <= 100
    assert loading[-1].ranks[1].progress.read_bytes > loading[0].ranks[1].progress.read_bytes
    deadlines = {one.waiting_for.deadline for one in loading if one.waiting_for is not None}
    assert len(deadlines) > 3, "its deadline stretches with its progress"
    for one in seen:
        if one.phase in UNFINISHED:
            assert one.waiting_for is not None, one
            assert one.waiting_for.what, one
            assert one.waiting_for.then, one
    stages = [one.phase for one in seen]
    order = [phase for at, phase in enumerate(stages) if at == 0 or stages[at - 1] != phase]
    assert order == [
        p for p in ("pending", "preflight", "launching", "loading", "warming", "ready") if p in order
    ]


def test_ctrl_c_leaves_it_starting_and_up_attaches_again(bed: Bed) -> None:
    configure(bed.folder / "engine", BOOT_S=9)
    asked = words("left")
    with start(bed, *asked) as process:
        until(
            lambda: [one for one in bed.client.status().deployments if one.phase == "launching"], "a launch"
        )
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "Traceback" not in out + err
    assert "sparkd up" in out or "sparkd status" in out
    assert "sparkd down left" in out
    before = bed.client.deployment("left")
    assert before.desired == "up"
    assert before.phase in UNFINISHED
    assert "left answers at http://127.0.0.1:" in run(bed, *asked)
    assert bed.client.deployment("left").generation == before.generation


def test_up_of_what_runs(bed: Bed) -> None:
    asked = words("again")
    run(bed, *asked)
    before = bed.client.deployment("again")
    assert "again answers at" in run(bed, *asked)
    other = run(bed, *asked, "--set", "engine.args.max-model-len=256", expect=1)
    assert "max-model-len: 512 -> 256" in other
    assert "sparkd down again" in other
    after = bed.client.deployment("again")
    assert [rank.pid for rank in after.ranks] == [rank.pid for rank in before.ranks]
    assert after.generation == before.generation

"""A local set whose ranks are containers: up, falls, adoption, down. Stand-ins for vLLM, a real engine."""

import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.bed.local_set import Bed, Deployment, all_gone, ask, until
from tests.bed.stand_in import configure
from tests.bed.stand_in_bed import stand_in_bed
from tests.bed.stream import Stream
from tests.docker.conftest import IMAGE, NOTHING
from tests.docker.engine import DockerEngine

_COUNT = itertools.count(1)
NO_TORCH = "torch cannot be loaded: ModuleNotFoundError: No module named 'torch'"


@pytest.fixture(scope="module")
def shared_bed(shared_engine: DockerEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with stand_in_bed(tmp_path_factory.mktemp("set"), docker=str(shared_engine.socket)) as bed:
        yield bed


@pytest.fixture
def bed(shared_bed: Bed, engine: DockerEngine) -> Iterator[Bed]:
    """Whatever the test deployed is down afterwards, and nothing of it is left in the engine."""
    configure(shared_bed.folder / "engine", EXIT_DELAY_S=None, STEP_S=None)
    shared_bed.start()
    yield shared_bed
    shared_bed.start()
    for one in shared_bed.client.status().deployments:
        if one.phase not in ("stopped", "failed"):
            stopped = Deployment(shared_bed, one.name).down()
            assert not stopped.left_on
    until(lambda: not engine.containers(), "the containers to be removed")


@pytest.fixture
def name() -> str:
    return f"box{next(_COUNT)}"


def names(engine: DockerEngine) -> set[str]:
    return {row["Names"][0].lstrip("/") for row in engine.containers() if row["State"] == "running"}


def test_two_containers_serve_and_a_killed_worker_makes_two_new_ones(
    bed: Bed, engine: DockerEngine, name: str
) -> None:
    deployment = bed.up(name, image=IMAGE)
    before = deployment.ready()
    assert names(engine) == {deployment.rank_name(0), deployment.rank_name(1)}
    assert ask(deployment, "12 x 7") == "84"
    alive = deployment.all_processes()
    assert alive
    os.kill(deployment.process(1, "VLLM::Worker").pid, signal.SIGKILL)
    after = deployment.ready(generation=before.generation + 1)
    all_gone(alive)
    assert after.falls == 1
    assert names(engine) == {deployment.rank_name(0), deployment.rank_name(1)}
    # Without a word of an image the deployment keeps its own.
    deployment.down()
    bed.up(name)
    deployment.ready(generation=after.generation + 1)
    assert names(engine) == {deployment.rank_name(0), deployment.rank_name(1)}


def test_the_collective_probe_runs_in_the_image_that_ranks_would_have(bed: Bed, engine: DockerEngine) -> None:
    """This one has no torch, and so it proves nothing; but it is the image's python that says so."""
    tests = list(bed.client.collectives(image=IMAGE))
    assert {rank.unable for rank in tests[-1].ranks if rank.unable} == {NO_TORCH}, "one of them is enough"
    assert {(one.id, one.severity) for one in tests[-1].verdicts} == {("FABRIC_UNPROVEN", "warn")}
    until(lambda: not engine.containers(), "the containers to be removed")
    (test,) = bed.client.collectives(image="sparkd-tests/absent:1")
    assert (test.over, {one.id for one in test.verdicts}) == (True, {"IMAGE_MISSING"})


def test_a_site_names_its_image_once(bed: Bed, engine: DockerEngine, name: str) -> None:
    folder = bed.folder / "config"
    folder.mkdir()
    site = folder / "site.toml"
    site.write_text(f'[engine]\nimage = "{IMAGE}"\n')
    command = [sys.executable, "-P", "-m", "sparkd"]
    try:
        for words in (("doctor",), ("up", "--timeout", "60")):
            done = subprocess.run(
                [*command, words[0], "tiny", "--name", name, *words[1:]],
                env=bed.env,
                cwd=bed.folder,
                capture_output=True,
                text=True,
                timeout=100,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
    finally:
        site.unlink()
        folder.rmdir()
    deployment = Deployment(bed, name)
    assert names(engine) == {deployment.rank_name(0), deployment.rank_name(1)}


def test_all_daemons_and_the_engine_are_killed_while_a_completion_streams(
    bed: Bed, engine: DockerEngine, name: str
) -> None:
    configure(bed.folder / "engine", STEP_S=0.02)
    deployment = bed.up(name, image=IMAGE)
    before = deployment.ready()
    alive = deployment.all_processes()
    stream = Stream(deployment, tokens=500)
    bed.kill(*bed.local.daemons)
    engine.kill()
    seen = stream.tokens
    until(lambda: stream.tokens > seen + 10, "tokens while nothing else is there")
    bed.start()
    after = deployment.ready()
    assert (after.generation, after.falls) == (before.generation, before.falls)
    assert [rank.pid for rank in after.ranks] == [rank.pid for rank in before.ranks]
    engine.start()
    configure(bed.folder / "engine", STEP_S=None)
    assert stream.rest() == 500
    assert deployment.all_processes() == alive


@pytest.mark.parametrize("how", ["killed", "restarted"])
def test_an_engine_with_live_restore_may_go_while_a_gang_serves(
    bed: Bed, engine: DockerEngine, name: str, how: str
) -> None:
    configure(bed.folder / "engine", STEP_S=0.02)
    deployment = bed.up(name, image=IMAGE)
    before = deployment.ready()
    alive = deployment.all_processes()
    stream = Stream(deployment, tokens=300)
    engine.kill() if how == "killed" else engine.stop()
    seen = stream.tokens
    until(lambda: stream.tokens > seen + 10, "tokens without an engine")
    engine.start()
    configure(bed.folder / "engine", STEP_S=None)
    assert stream.rest() == 300
    after = deployment.ready()
    assert (after.generation, after.falls) == (before.generation, 0)
    assert deployment.all_processes() == alive
    # It is looked after as before, and the engine knows of its containers.
    os.kill(deployment.process(1, "VLLM::Worker").pid, signal.SIGKILL)
    again = deployment.ready(generation=before.generation + 1)
    all_gone(alive)
    assert again.falls == 1
    until(lambda: names(engine) == {deployment.rank_name(0), deployment.rank_name(1)}, "the old to go")


@pytest.mark.parametrize("how", ["killed", "restarted"])
def test_an_engine_without_live_restore_takes_its_ranks_along_and_the_gang_comes_back(
    bed: Bed, engine: DockerEngine, name: str, how: str
) -> None:
    engine.stop()
    engine.start(live_restore=False)
    deployment = bed.up(name, "restart.budget=9", image=IMAGE)
    before = deployment.ready()
    alive = deployment.all_processes()
    if how == "killed":
        engine.kill()
        # An engine that was killed ends nobody before it is back.
        assert ask(deployment, "12 x 7") == "84"
    else:
        engine.stop()
    engine.start(live_restore=False)
    after = deployment.ready(generation=before.generation + 1)
    all_gone(alive)
    assert after.falls >= 1
    assert ask(deployment, "12 x 7") == "84"
    until(lambda: names(engine) == {deployment.rank_name(0), deployment.rank_name(1)}, "two containers")
    deployment.down()
    engine.stop()
    engine.start()


@pytest.mark.parametrize("runs", [True, False], ids=["running", "ended"])
def test_an_agent_that_lost_its_state_leaves_no_container_behind(
    bed: Bed, engine: DockerEngine, name: str, *, runs: bool
) -> None:
    """Ledger, folders, all of it: what runs is adopted by what its container says, what ended is removed. The
    containers of the other agent on this engine are none of its business.
    """
    deployment = bed.up(name, image=IMAGE)
    before = deployment.ready()
    mine, others = deployment.rank_name(1), deployment.rank_name(0)
    alive = deployment.all_processes()
    (bystander,) = [row for row in engine.containers() if row["Names"] == [f"/{others}"]]
    bed.kill(bed.local.agents[1])
    if not runs:
        for process in deployment.processes(1):
            os.kill(process.pid, signal.SIGKILL)
        until(lambda: names(engine) == {others}, "the end of the container")
        assert mine in {row["Names"][0].lstrip("/") for row in engine.containers()}
    shutil.rmtree(bed.paths.local / "agents" / "2" / "state")
    bed.start()
    after = deployment.ready(generation=before.generation if runs else before.generation + 1)
    if runs:
        assert (after.generation, after.falls) == (before.generation, 0)
        assert deployment.all_processes() == alive
        assert bystander["Id"] in {row["Id"] for row in engine.containers()}
        deployment.down()
    until(lambda: mine not in {row["Names"][0].lstrip("/") for row in engine.containers()}, "its removal")
    all_gone(alive)


def test_an_image_that_is_not_there(bed: Bed, name: str) -> None:
    deployment = bed.up(name, image="sparkd-tests/absent:1")
    failed = deployment.until("failed")
    assert [(one.id, one.severity.value) for one in failed.verdicts] == [("IMAGE_MISSING", "block")] * 2
    assert "docker pull" in failed.verdicts[0].evidence


def test_an_image_without_an_engine(bed: Bed, name: str) -> None:
    failed = bed.up(name, image=NOTHING).until("failed")
    assert "has no python that runs" in failed.reason


def test_an_engine_that_is_away_is_told_before_anything_is_started(
    bed: Bed, engine: DockerEngine, name: str
) -> None:
    engine.stop()
    failed = bed.up(name, image=IMAGE).until("failed")
    engine.start()
    assert {one.id for one in failed.verdicts} == {"DOCKER_DOWN"}
    assert "systemctl" in failed.verdicts[0].remedy

"""Real vLLM in two containers over gloo, asked for as a user does: it compiles, loses its daemons, falls, and
does not compile again. Two boots for all of it.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkd_agent.logs import RankLog
from tests.bed.local_set import Bed, Deployment, Watch, all_gone, ask, local_bed, until
from tests.bed.stream import Stream
from tests.docker.engine import DockerEngine, place
from tests.docker.vllm_image import import_vllm

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / ".venv-vllm"
PLAIN = "sparkd-tests/vllm-plain:1"
IMAGE = "sparkd-tests/vllm:1"
NAME = "boxed"
BOOT_S = 600
"""Compiling takes half a minute on an idle machine."""
GONE_S = 10.0
COMPILES = (
    "engine.args.enforce-eager=false",
    "env.TORCHDYNAMO_DISABLE=null",
    # vLLM 0.32 cannot load its own ahead-of-time files on a CPU ("no attribute 'finalize_loading'").
    "env.VLLM_USE_AOT_COMPILE=0",
)

say = sys.stderr.write

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(3 * BOOT_S)]


@pytest.fixture(scope="module")
def bed(shared_engine: DockerEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """The image has a compiler besides."""
    packages = import_vllm(shared_engine, PLAIN, ENGINE)
    folder = tmp_path_factory.mktemp("vllm")
    recipe = folder / "Dockerfile"
    recipe.write_text(f"FROM {PLAIN}\nADD files.tar /\n")
    with recipe.open("rb") as text:
        shared_engine.docker("build", "-t", IMAGE, "-f", "-", str(place()) + ".compiler", data=text)
    env = {
        "DOCKER_HOST": f"unix://{shared_engine.socket}",
        "SPARKD_MODELS": f"{(ROOT / '.models').resolve()}:{packages}",
    }
    with local_bed(folder, ENGINE, ROOT / ".models", more_env=env) as bed:
        yield bed


@pytest.fixture(scope="module")
def deployment(bed: Bed) -> Deployment:
    sets = [word for one in COMPILES for word in ("--set", one)]
    command = [sys.executable, "-P", "-m", "sparkd", "up", "tiny", "--local", "2", "--name", NAME]
    done = subprocess.run(
        [*command, "--image", IMAGE, *sets],
        env=bed.env,
        cwd=bed.folder,
        capture_output=True,
        text=True,
        timeout=BOOT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Deployment(bed, NAME)


def state_of(bed: Bed, node: int) -> Path:
    return bed.paths.local / "agents" / str(node) / "state"


def compiled(bed: Bed) -> dict[Path, int]:
    """What torch's inductor has compiled for the ranks of both nodes, and when."""
    caches = [cache for node in (1, 2) for cache in (state_of(bed, node) / "caches").glob("*/inductor")]
    return {file: file.stat().st_mtime_ns for cache in caches for file in cache.rglob("*") if file.is_file()}


def initialised_s(bed: Bed, deployment: Deployment, generation: int) -> float:
    """As vLLM says it: from the loaded weights on, compiling and warming up included."""
    log = RankLog(state_of(bed, 1) / "ranks" / deployment.rank_name(0, generation) / "log")
    text = "\n".join(line.text for line in log.last(5000))
    (took,) = re.findall(r"init engine \(.*\) took ([\d.]+) s", text)
    return float(took)


def test_up_with_an_image_serves_over_the_loss_of_all_daemons(
    bed: Bed, deployment: Deployment, engine: DockerEngine
) -> None:
    before = deployment.ready()
    running = {row["Names"][0].lstrip("/") for row in engine.containers()}
    assert running == {deployment.rank_name(0), deployment.rank_name(1)}
    image = engine.api.ask("GET", f"/images/{IMAGE}/json")["Id"]
    assert {row["ImageID"] for row in engine.containers()} == {image}
    assert ask(deployment, "Say something.", max_tokens=8)
    alive = deployment.all_processes()

    stream = Stream(deployment, tokens=256)
    bed.kill(*bed.local.daemons)
    engine.kill()
    bed.start()
    after = deployment.ready()
    engine.start()
    assert stream.rest() >= 256
    assert [rank.pid for rank in after.ranks] == [rank.pid for rank in before.ranks]
    assert deployment.all_processes() == alive

    # A fall: known and over at once, and the next generation finds what this one has compiled.
    first = compiled(bed)
    assert len([file for file in first if file.suffix == ".so"]) > 10, first
    watch, at = Watch(bed.client, NAME), time.monotonic()
    os.kill(deployment.process(1, "VLLM::Worker").pid, signal.SIGKILL)
    all_gone(alive, GONE_S)
    gone = time.monotonic() - at
    known = watch.reached("recovering", at) - at
    again = deployment.ready(generation=before.generation + 1, timeout_s=BOOT_S)
    assert (again.generation, again.falls) == (before.generation + 1, 1)
    assert ask(deployment, "Say something.", max_tokens=8)
    assert compiled(bed) == first, "a second boot compiles again"
    took = [initialised_s(bed, deployment, one.generation) for one in (before, again)]
    say(f"\nworker of rank 1 in a container killed: known {known:.2f} s, all gone {gone:.2f} s\n")
    say(f"init engine in containers: {took[0]:.1f} s compiling, {took[1]:.1f} s with its cache\n")

    alive = deployment.all_processes()
    deployment.down()
    all_gone(alive)
    until(lambda: not engine.containers(), "the containers to be removed")

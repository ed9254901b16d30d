"""Real vLLM in two containers over gloo, asked for as a user does. One boot for all of it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bed.local_set import Bed, Deployment, all_gone, ask, local_bed, until
from tests.bed.stream import Stream
from tests.docker.conftest import SITE
from tests.docker.engine import DockerEngine
from tests.lab.image import image as lab_root

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / ".venv-vllm"
IMAGE = "sparkd-tests/vllm:1"
NAME = "boxed"
BOOT_S = 300

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2 * BOOT_S)]


@pytest.fixture(scope="module")
def bed(shared_engine: DockerEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """The image knows of a vLLM; its files, 3 GB, come with a read-only mount."""
    (packages,) = (ENGINE / "lib").resolve().glob("python3*/site-packages")
    (metadata,) = packages.glob("vllm-*.dist-info")
    files = {f"{SITE}/{metadata.name}/METADATA": (metadata / "METADATA").read_text()}
    shared_engine.import_folder(IMAGE, lab_root(), files, f"ENV PYTHONPATH={packages}")
    env = {
        "DOCKER_HOST": f"unix://{shared_engine.socket}",
        "SPARKD_MODELS": f"{(ROOT / '.models').resolve()}:{packages}",
    }
    with local_bed(tmp_path_factory.mktemp("vllm"), ENGINE, ROOT / ".models", more_env=env) as bed:
        yield bed


def test_up_with_an_image_serves_over_the_loss_of_all_daemons(bed: Bed, engine: DockerEngine) -> None:
    words = [
        sys.executable,
        "-P",
        "-m",
        "sparkd",
        "up",
        "tiny",
        "--local",
        "2",
        "--name",
        NAME,
        "--image",
        IMAGE,
    ]
    done = subprocess.run(
        words, env=bed.env, cwd=bed.folder, capture_output=True, text=True, timeout=BOOT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    deployment = Deployment(bed, NAME)
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

    cache = bed.folder / "state" / "sparkd" / "local" / "agents" / "1" / "state" / "caches"
    assert list(cache.glob("*/vllm"))
    deployment.down()
    all_gone(alive)
    until(lambda: not engine.containers(), "the containers to be removed")

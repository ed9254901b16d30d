"""One engine for all tests of this folder, with an image of the lab's root file system."""

import itertools
import os
from collections.abc import Iterator

import pytest

from tests.bed.containers import BED, IMAGE
from tests.bed.stand_in import VERSION
from tests.docker.engine import DockerEngine, docker_engine
from tests.lab.image import image as lab_root

SITE = "usr/lib/python3/dist-packages"
STAND_IN = """
import os, sys
sys.path.insert(0, {bed!r})
sys.argv[1:1] = ["-m", "vllm.entrypoints.cli.main"]
from stand_in.launcher import main
main(os.environ.get("STAND_IN_FOLDER", "/"), sys.executable)
"""
"""A vLLM for an image: its code comes with a model root. A test that configures it says by which folder."""
NOTHING = "sparkd-tests/nothing:1"
"""An image in which nothing can be executed."""
_COUNT = itertools.count(1)


@pytest.fixture(scope="session")
def shared_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerEngine]:
    with docker_engine(tmp_path_factory.mktemp("docker") / "engine") as engine:
        files = {f"{SITE}/vllm/entrypoints/cli/main.py": STAND_IN.format(bed=str(BED))}
        for package in ("vllm", "vllm/entrypoints", "vllm/entrypoints/cli"):
            files[f"{SITE}/{package}/__init__.py"] = ""
        metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}\n"
        files[f"{SITE}/vllm-{VERSION}.dist-info/METADATA"] = metadata
        engine.import_folder(IMAGE, lab_root(), files, "ENV FROM_IMAGE=yes")
        engine.import_files(NOTHING, {"etc/nothing": ""})
        yield engine


@pytest.fixture
def engine(shared_engine: DockerEngine) -> Iterator[DockerEngine]:
    """It answers; whatever a test left in it fails the test."""
    yield shared_engine
    if not shared_engine.answers():
        shared_engine.start()
    left = [row["Names"] for row in shared_engine.containers()]
    for row in shared_engine.containers():
        shared_engine.remove(row["Id"])
    assert not left


@pytest.fixture
def name() -> str:
    """Of a rank: no two tests share one."""
    return f"sparkd-c{os.getpid()}-g{next(_COUNT)}-r0"

"""Both targets of the Dockerfile, built against local bases: no registry, no index."""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import sparkd
from sparkd_agent.runtime.images import Images
from tests.bed.stand_in import VERSION
from tests.docker.conftest import IMAGE, NOTHING
from tests.docker.engine import PATIENCE_S, DockerEngine

ROOT = Path(__file__).parents[2]
AGENT = "sparkd-tests/agent:1"
RANK = "sparkd-tests/rank:1"


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a user would build in, with wheels for a build without an index."""
    folder = tmp_path_factory.mktemp("context")
    for name in ("Dockerfile", ".dockerignore", "README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    for name in ("sparkd", "agents", "profiles"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / ".venv").mkdir()
    (folder / ".venv" / "large").write_bytes(b"0" * (8 << 20))
    wanted = [f"{folder}[enrol]", "hatchling>=1.26"]
    words = ["-m", "pip", "download", "-q", "--prefer-binary", "-d", str(folder / "wheels"), *wanted]
    subprocess.run([sys.executable, *words], check=True, timeout=240)
    return folder


@pytest.fixture(scope="module")
def agent_image(shared_engine: DockerEngine, context: Path) -> Iterator[str]:
    options = "--no-index --find-links=/src/wheels"
    arguments = ("--build-arg", f"PYTHON={IMAGE}", "--build-arg", f"PIP_OPTIONS={options}")
    said = shared_engine.docker(
        "build", "--target", "agent", "--network=none", "-t", AGENT, *arguments, str(context)
    )
    yield said
    shared_engine.docker("rmi", "-f", AGENT)


def run(engine: DockerEngine, *words: str) -> str:
    return engine.docker("run", "--rm", "--network=host", "--log-driver=none", *words)


@pytest.mark.timeout(400)
def test_the_agents_image_is_sparkd_without_privileges(
    engine: DockerEngine, agent_image: str, context: Path
) -> None:
    sent = next(line for line in agent_image.splitlines() if line.startswith("Sending build context"))
    assert float(sent.split()[-1].removesuffix("MB").removesuffix("kB")) < 60, sent
    assert run(engine, AGENT, "sparkd", "--version").strip().endswith(sparkd.__version__)
    assert run(engine, AGENT, "id", "-u").strip() == "7070"
    assert "rank 1" in run(engine, AGENT, "sparkd", "plan", "tiny", "--local", "2")
    assert "usage: sparkd-agent" in run(engine, "--user", "0", AGENT, "sparkd-agent", "--help")


@pytest.mark.timeout(400)
def test_its_coordinator_runs_as_nobody_in_particular(engine: DockerEngine, agent_image: str) -> None:
    words = ["--rest", "127.0.0.1:0", "--agents", "127.0.0.1:0", "--state-dir", "/var/lib/sparkd/coordinator"]
    run_it = ["-d", "--name", "coordinator", AGENT, "sparkd", "coordinator", "run", *words]
    engine.docker("run", "--network=none", *run_it)
    try:
        end = time.monotonic() + PATIENCE_S
        while "listen" not in (said := engine.docker("logs", "coordinator")).lower():
            assert engine.inspect("coordinator")["State"]["Running"], said
            assert time.monotonic() < end, said
            time.sleep(0.1)
    finally:
        engine.remove("coordinator")


def test_a_ranks_image_is_its_base_without_an_entry_point(
    engine: DockerEngine, context: Path, tmp_path: Path
) -> None:
    based = "sparkd-tests/with-entry-point:1"
    (tmp_path / "Dockerfile").write_text(f'FROM {IMAGE}\nENTRYPOINT ["vllm", "serve"]\n')
    engine.docker("build", "-t", based, str(tmp_path))
    said = engine.docker(
        "build",
        "--target",
        "rank",
        "--network=none",
        "-t",
        RANK,
        "--build-arg",
        f"BASE={based}",
        str(context),
    )
    assert f"vLLM {VERSION}" in said
    images = Images(engine.api, tmp_path / "images")
    assert images.find(based).entrypoint == ("vllm", "serve")
    assert images.find(RANK).entrypoint == ()
    assert images.report(RANK).facts.vllm == VERSION


def test_a_base_without_vllm_is_refused_at_the_build(engine: DockerEngine, context: Path) -> None:
    with pytest.raises(AssertionError, match="python3"):
        engine.docker(
            "build", "--target", "rank", "--network=none", "--build-arg", f"BASE={NOTHING}", str(context)
        )

"""Both targets of the Dockerfile, built against local bases: no registry, no index."""

import asyncio
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

import sparkd
from sparkd_agent.runtime.images import Images
from tests.bed.stand_in import VERSION
from tests.docker.conftest import IMAGE, NOTHING
from tests.docker.engine import PATIENCE_S, DockerEngine
from tests.docker.test_docker_runtime import docker_bed, status_of

ROOT = Path(__file__).parents[2]
AGENT = "sparkd-tests/agent:1"
RANK = "sparkd-tests/rank:1"
SITE = sysconfig.get_paths()["purelib"]
WITHOUT_NETWORK = ("--network=none", "-v", f"{SITE}:/deps:ro", "-e", "PYTHONPATH=/deps")


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
    words = [
        "-m",
        "pip",
        "download",
        "-q",
        "--prefer-binary",
        "-d",
        str(folder / "wheels"),
        "hatchling>=1.26",
    ]
    subprocess.run([sys.executable, *words], check=True, timeout=200)
    return folder


def build(engine: DockerEngine, context: Path, target: str, base: str = IMAGE) -> str:
    """Without dependencies: they are those that the tests run with. The classic builder makes all stages."""
    options = "--no-deps --no-index --find-links=/src/wheels"
    words = [f"PYTHON={IMAGE}", f"PIP_OPTIONS={options}", f"BASE={base}"]
    arguments = [word for argument in words for word in ("--build-arg", argument)]
    return engine.docker(
        "build",
        "--force-rm",
        "--target",
        target,
        "--network=none",
        "-t",
        f"sparkd-tests/{target}:1",
        *arguments,
        str(context),
    )


@pytest.fixture(scope="module")
def agent_image(shared_engine: DockerEngine, context: Path) -> str:
    return build(shared_engine, context, "agent")


def run(engine: DockerEngine, *words: str) -> str:
    return engine.docker("run", "--rm", *WITHOUT_NETWORK, *words)


@pytest.mark.timeout(400)
def test_the_agents_image_is_sparkd_without_privileges(engine: DockerEngine, agent_image: str) -> None:
    sent = next(line for line in agent_image.splitlines() if line.startswith("Sending build context"))
    assert "kB" in sent or float(sent.split()[-1].removesuffix("MB")) < 8, sent
    assert run(engine, AGENT, "sparkd", "--version").strip().endswith(sparkd.__version__)
    assert run(engine, AGENT, "id", "-u").strip() == "7070"
    assert "rank 1" in run(engine, AGENT, "sparkd", "plan", "tiny", "--local", "2")
    assert "usage: sparkd-agent" in run(engine, "--user", "0", AGENT, "sparkd-agent", "--help")


def test_its_coordinator_is_initialised_and_runs_as_nobody_in_particular(
    engine: DockerEngine, agent_image: str
) -> None:
    volume = ("-v", "sparkd-tests:/var/lib/sparkd")
    init = ("sparkd", "init", "--no-node", "--no-service", "--offline", "--address", "127.0.0.1")
    assert "/var/lib/sparkd/coordinator" in run(engine, *volume, AGENT, *init)
    engine.docker("run", "-d", "--name", "coordinator", *WITHOUT_NETWORK, *volume, AGENT)
    try:
        end = time.monotonic() + PATIENCE_S
        ask = "from urllib.request import urlopen; print(urlopen('http://127.0.0.1:7070/healthz').status)"
        while engine.try_docker("exec", "coordinator", "python3", "-c", ask).strip() != "200":
            assert engine.inspect("coordinator")["State"]["Running"], engine.docker("logs", "coordinator")
            assert time.monotonic() < end
            time.sleep(0.2)
        status = status_of(engine.inspect("coordinator")["State"]["Pid"])
        assert status["Uid"].split() == ["7070"] * 4
        assert int(status["CapEff"], 16) == 0
    finally:
        engine.remove("coordinator")
        engine.docker("volume", "rm", "sparkd-tests")


def test_its_agent_runs_and_answers(engine: DockerEngine, agent_image: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("x")
    (tmp_path / "agent.toml").write_text(
        '[node]\nid = "n1"\nname = "n1"\naddress = "127.0.0.1"\n'
        '[coordinator]\nurls = ["http://127.0.0.1:9"]\ntoken_file = "/etc/sparkd/token"\nholder = "h"\n'
        '[state]\ndir = "/var/lib/sparkd/agent"\nsocket = "/run/agent.sock"\n[rank]\nuser = "sparkd"\n'
    )
    config = ("-v", f"{tmp_path}:/etc/sparkd:ro")
    engine.docker(
        "run", "-d", "--name", "agent", "--user", "0", *WITHOUT_NETWORK, *config, AGENT, "sparkd-agent", "run"
    )
    try:
        end = time.monotonic() + PATIENCE_S
        while "127.0.0.1:9 cannot be reached" not in engine.try_docker(
            "exec", "agent", "sparkd-agent", "status"
        ):
            assert engine.inspect("agent")["State"]["Running"], engine.docker("logs", "agent")
            assert time.monotonic() < end
            time.sleep(0.2)
    finally:
        engine.remove("agent")


def test_a_ranks_image_is_its_base_without_an_entry_point(
    engine: DockerEngine, agent_image: str, context: Path, tmp_path: Path, name: str
) -> None:
    based = "sparkd-tests/with-entry-point:1"
    (tmp_path / "Dockerfile").write_text(f'FROM {IMAGE}\nENTRYPOINT ["vllm", "serve"]\n')
    engine.docker("build", "-t", based, str(tmp_path))
    assert f"vLLM {VERSION}" in build(engine, context, "rank", based)
    images = Images(engine.api, tmp_path / "images")
    assert images.find(based).entrypoint == ("vllm", "serve")
    assert images.find(RANK).entrypoint == ()
    assert images.report(RANK).facts.vllm == VERSION

    async def test() -> None:
        async with docker_bed(tmp_path / "node", engine) as bed:
            rank = await bed.start(name, "echo", "from the image", image=RANK)
            assert await rank.says("argv ") == "argv ['from the image']"

    asyncio.run(test())


def test_a_base_without_vllm_is_refused_at_the_build(
    engine: DockerEngine, agent_image: str, context: Path
) -> None:
    with pytest.raises(AssertionError, match=r"importlib\.metadata"):
        build(engine, context, "rank", NOTHING)

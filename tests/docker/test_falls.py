"""Falls and adoption in containers: the tests of the other runtimes, word for word."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bed.containers import SOCKET_VARIABLE
from tests.bed.ranks import RUNTIME_VARIABLE
from tests.docker.engine import DockerEngine

ROOT = Path(__file__).parents[2]


def run_tests(engine: DockerEngine, *paths: str) -> int:
    """Run tests with every rank in a container of this engine; how many passed."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "3", "-p", "no:cacheprovider", *paths],
        env={**os.environ, RUNTIME_VARIABLE: "docker", SOCKET_VARIABLE: str(engine.socket)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None, done.stdout
    return int(passed[1])


@pytest.mark.timeout(500)
def test_what_holds_for_every_rank_holds_for_containers(engine: DockerEngine) -> None:
    """The supervisor: essential processes, the one kill path, adoption."""
    assert run_tests(engine, "tests/contract/test_supervisor.py") > 30


@pytest.mark.timeout(500)
def test_every_kind_of_fall_in_every_phase_and_every_adoption(engine: DockerEngine) -> None:
    """Whole gangs: any process, any way to end; any daemon dead meanwhile, and its state lost."""
    tests = [f"tests/contract/falls/test_{name}.py" for name in ("kinds", "adoption")]
    assert run_tests(engine, *tests) > 40

"""The collective probe with real torch: two ranks over gloo, through a real coordinator and real agents."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from sparkd.engine.collective import probe_words, read_collective
from sparkd.engine.plugin import plugin_folder
from sparkd.records.collective import STAGES, CollectiveReport, CollectiveTest
from sparkd.records.fabric import FabricTest
from tests.bed.agent_process import HOLDER, AgentProcess, until
from tests.bed.coordinator import Coordinator, sparkd
from tests.bed.ports import free_port

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
NAMES = ("node-1", "node-2")
LATE = """#!/bin/sh
# Loads torch like the others, and then never goes to the rendezvous: another machine has its address, say.
exec {python} -c '
import sys, time
sys.argv[1:] = sys.argv[3:]
import sparkd_mods.fabric_probe as probe
probe.run = lambda *_: time.sleep(600)
probe.main(sys.argv[1:])' "$@"
"""

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(240)]


def outcome_of(coordinator: Coordinator, *words: str) -> tuple[int, CollectiveTest]:
    done = sparkd(coordinator, "fabric", "test", "--size", "64M", "-o", "json", *words)
    assert done.stdout, done.stderr
    (test,) = msgspec.json.decode(done.stdout, type=FabricTest).collectives
    return done.returncode, test


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def two(folder: Path, stack: ExitStack, second: Path = PYTHON, **limits: float) -> Coordinator:
    coordinator = Coordinator(folder, {name: name for name in NAMES}, limits=limits, holder=HOLDER)
    coordinator.start()
    stack.callback(coordinator.end, signal.SIGKILL)
    for name, python in zip(NAMES, (PYTHON, second), strict=True):
        (folder / name).mkdir()
        agent = AgentProcess(folder / name, f"http://127.0.0.1:{coordinator.agents}", name, python=python)
        agent.start()
        stack.callback(agent.end)
    until(lambda: [n["state"] for n in coordinator.ask("GET", "/v1/nodes").json] == ["alive"] * 2, "hellos")
    return coordinator


def test_two_ranks_sum_up(tmp_path: Path, stack: ExitStack) -> None:
    code, test = outcome_of(two(tmp_path, stack))
    assert (code, test.passed, test.backend, test.verdicts) == (0, True, "gloo", ())
    assert [step.bytes for step in test.steps] == [8 * 8**power for power in range(8)] + [64 << 20]
    assert all(step.seconds > 0 for step in test.steps)
    assert (test.best_mbit or 0) > 0


def test_one_that_never_arrives_is_named(tmp_path: Path, stack: ExitStack) -> None:
    late = tmp_path / "late"
    late.write_text(LATE.format(python=PYTHON))
    late.chmod(0o755)
    coordinator = two(tmp_path, stack, late, collective_long_s=3.0)
    code, test = outcome_of(coordinator)
    assert (code, [rank.stage for rank in test.ranks]) == (1, ["met", "imported"])
    assert [(one.id, one.node, one.rank) for one in test.verdicts] == [("COLLECTIVE_ABSENT", "node-2", 1)]
    assert "imported, its process lives" in test.verdicts[0].evidence


def test_alone_it_ends_by_itself_whatever_torch_does() -> None:
    words = probe_words(0, 2, "127.0.0.1", free_port(), most_bytes=1 << 20, ladder_s=1.0, within_s=12.0)
    began = time.monotonic()
    done = subprocess.run(
        [PYTHON, "-m", "sparkd_mods.fabric_probe", *words],
        env={"PYTHONPATH": str(plugin_folder()), "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGALRM, done.stderr
    assert time.monotonic() - began > 11
    told = read_collective(done.stdout.splitlines(), CollectiveReport())
    assert STAGES.index(told.stage) <= STAGES.index("met")
    assert (told.error, told.unable) == ("", "")


def test_a_python_without_torch_says_so() -> None:
    words = probe_words(0, 2, "127.0.0.1", free_port(), most_bytes=1 << 20, ladder_s=1.0, within_s=30.0)
    done = subprocess.run(
        [sys.executable, "-m", "sparkd_mods.fabric_probe", *words],
        env={"PYTHONPATH": str(plugin_folder())},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    told = read_collective(done.stdout.splitlines(), CollectiveReport())
    assert (told.stage, "No module named 'torch'" in told.unable) == ("started", True)

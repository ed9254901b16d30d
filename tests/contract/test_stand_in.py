"""The stand-in must fail as vLLM does, or tests that use it prove nothing (facts/vllm.md §2.1)."""

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkd.engine.phrases import PHASES, read_line
from tests.bed.gang import Gang, hand_started, until
from tests.bed.stand_in import configure, make_stand_in, remove_segments


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Path]:
    make_stand_in(tmp_path)
    configure(tmp_path, EXIT_DELAY_S=0.2)
    yield tmp_path
    remove_segments(tmp_path)


@pytest.fixture
def gang(engine: Path) -> Iterator[Gang]:
    with hand_started(engine / "bin" / "python", "/models/tiny", engine) as gang:
        gang.ready(10)
        yield gang


def ask(gang: Gang, path: str, body: dict[str, Any] | None = None, timeout: float = 5) -> tuple[int, str]:
    """Status and text; status 0 when nobody answers."""
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(f"http://127.0.0.1:{gang.api_port}{path}", data=data)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


COMPLETION = {"model": "tiny", "prompt": "hello", "max_tokens": 3}


def test_phases_answers_and_titles(gang: Gang) -> None:
    head, follower = gang.ranks
    sightings = [read_line(line) for line in head.log().splitlines()]
    seen = {sighting.phase for sighting in sightings if sighting}
    assert seen >= set(PHASES)
    question = [{"role": "user", "content": "What is 12 x 7?"}]
    status, text = ask(gang, "/v1/chat/completions", {"model": "tiny", "messages": question})
    assert status == 200
    assert json.loads(text)["choices"][0]["message"]["content"] == "84"
    assert {"VLLM::EngineCore", "VLLM::Worker_TP0"} <= set(head.pids())
    assert "VLLM::Worker_TP1" in follower.pids()
    status, text = ask(gang, "/metrics")
    assert "vllm:generation_tokens_total" in text


def test_a_dead_follower_worker_fails_the_next_completion_and_all_exit_with_0(gang: Gang) -> None:
    head, follower = gang.ranks
    os.kill(follower.process("VLLM::Worker_TP1"), signal.SIGKILL)
    assert follower.leader.wait(10) == 0
    assert "Worker proc VllmWorker-1 died unexpectedly (exit code: -9)" in follower.log()
    assert ask(gang, "/health")[0] == 200
    assert ask(gang, "/v1/completions", COMPLETION)[0] == 500
    assert head.leader.wait(10) == 0


def test_a_stopped_worker_hangs_completions_and_nothing_else(gang: Gang) -> None:
    worker = gang.ranks[1].process("VLLM::Worker_TP1")
    os.kill(worker, signal.SIGSTOP)
    assert ask(gang, "/v1/completions", COMPLETION, timeout=0.5)[0] == 0
    assert ask(gang, "/health")[0] == 200
    os.kill(worker, signal.SIGCONT)
    assert ask(gang, "/v1/completions", COMPLETION)[0] == 200


def test_a_dead_engine_ends_the_head_with_0_and_the_follower_does_not_notice(gang: Gang) -> None:
    head, follower = gang.ranks
    os.kill(head.process("VLLM::EngineCore"), signal.SIGKILL)
    assert head.leader.wait(10) == 0
    assert follower.leader.poll() is None
    assert "VLLM::Worker_TP1" in follower.pids()


@pytest.mark.parametrize("number", [0, 1])
def test_sigkill_of_a_launcher_leaves_orphans(gang: Gang, number: int) -> None:
    rank = gang.ranks[number]
    rank.leader.kill()
    rank.leader.wait()
    until(lambda: "Parent process exited" in rank.log() or number == 0)
    assert f"VLLM::Worker_TP{number}" in rank.pids()


def test_a_follower_that_never_comes_is_waited_for(engine: Path) -> None:
    with hand_started(
        engine / "bin" / "python",
        "/models/tiny",
        engine,
        env={"STAND_IN_EXIT": "launching:3@1"},
        args=("--distributed-timeout-seconds", "1"),
    ) as gang:
        head, follower = gang.ranks
        assert follower.leader.wait(10) == 3
        assert ask(gang, "/health")[0] == 0, "refused before ready"
        assert head.leader.wait(10) == 1
        assert "1/2 clients joined" in head.log()


def test_shared_memory_is_left_behind_by_sigkill_only(engine: Path) -> None:
    configure(engine, SHM_BYTES=4096)
    with hand_started(engine / "bin" / "python", "/models/tiny", engine) as gang:
        gang.ready(10)
        head, follower = gang.ranks
        of_head, of_follower = head.segments(), follower.segments()
        assert len(of_head) == 2, "one of EngineCore, one of its worker"
        assert len(of_follower) == 1
        head.leader.terminate()
        assert head.leader.wait(10) == 0
        os.killpg(follower.leader.pid, signal.SIGKILL)
        follower.leader.wait()
        assert not [path for path in of_head if path.exists()]
        assert [path for path in of_follower if path.exists()]
    remove_segments(engine)
    assert not [path for path in of_follower if path.exists()]


def test_other_python_programs_run_and_find_a_vllm(engine: Path) -> None:
    import subprocess

    code = "import importlib.metadata as m; print(m.version('vllm'))"
    told = subprocess.run([engine / "bin" / "python", "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "0.32.0"

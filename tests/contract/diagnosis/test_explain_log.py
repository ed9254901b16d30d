"""`sparkd explain --log`: logs of any launcher, without a coordinator and whatever their size."""

import json
import random
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FIXTURES = Path(__file__).parents[2] / "fixtures"
KILLED = FIXTURES / "vllm-0.32-tp2-worker-killed"


def explain(*paths: Path) -> dict[str, Any]:
    run = subprocess.run(
        [sys.executable, "-m", "sparkd", "explain", "--log", *map(str, paths), "-o", "json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    told: dict[str, Any] = json.loads(run.stdout)
    return told


@pytest.mark.parametrize("order", [1, -1])
def test_a_real_gang_whose_worker_was_killed(order: int) -> None:
    told = explain(*(KILLED / "rank0.log", KILLED / "rank1.log")[::order])
    assert (told["cause"]["id"], told["cause"]["rank"]) == ("PROCESS_KILLED", 1)
    assert "VllmWorker-1" in told["cause"]["evidence"]
    assert {one["rank"] for one in told["secondary"]} == {0}
    assert any("SIGKILL" in gap for gap in told["not_known"])


def test_names_of_files_do_not_matter(tmp_path: Path) -> None:
    """The ranks are read from what vLLM wrote."""
    (tmp_path / "head.txt").write_bytes((KILLED / "rank0.log").read_bytes())
    (tmp_path / "other.txt").write_bytes((KILLED / "rank1.log").read_bytes())
    told = explain(tmp_path / "head.txt", tmp_path / "other.txt")
    assert (told["cause"]["id"], told["cause"]["rank"]) == ("PROCESS_KILLED", 1)


def test_a_survivor_alone_says_that_it_is_one(tmp_path: Path) -> None:
    folder = tmp_path / "ranks" / "sparkd-tiny-g1-r0" / "log"
    folder.mkdir(parents=True)
    (folder / "00000000000000000000").write_bytes((KILLED / "rank0.log").read_bytes())
    told = explain(folder / "00000000000000000000")
    assert (told["cause"]["id"], told["cause"]["rank"]) == ("PEER_LOST", 0)
    assert told["cause"]["node"] == "sparkd-tiny-g1-r0"
    assert any("what ended first" in gap for gap in told["not_known"])


def test_a_noisy_log_has_no_verdict(tmp_path: Path) -> None:
    """Waits, retries, heartbeats, warnings and what users say: none of it is a fall."""
    log = tmp_path / "noisy.log"
    log.write_text(
        "(EngineCore pid=7) INFO 11-30 07:50:38 [shm_broadcast.py:1] No available shared memory broadcast "
        "block found in 60 seconds. This typically happens when some processes are hanging.\n"
        * 10
        + "[W1130 07:48:24.656 socket.cpp:207] [c10d] The client socket has failed to connect to "
        "[10.77.0.10]:29511 (errno: 111 - Connection refused).\n"
        * 50
        + "(APIServer pid=1) INFO 11-30 07:50:38 [logger.py:40] Received request cmpl-1: prompt: 'my worker "
        "died unexpectedly, CUDA out of memory, Address already in use?', params: SamplingParams(n=1)\n"
        "(APIServer pid=1) WARNING 11-30 07:50:39 [x.py:1] Retrying after HTTPError\n"
        "(APIServer pid=1) ERROR 11-30 07:50:39 [serving.py:1] Error in preprocessing prompt inputs\n"
        "(APIServer pid=1) ERROR 11-30 07:50:39 [serving.py:1] ValueError: This model's maximum context "
        "length is 512 tokens. However, you requested 600 tokens.\n"
        'INFO:     127.0.0.1:37330 - "POST /v1/completions HTTP/1.1" 400 Bad Request\n'
        "(EngineCore pid=7) INFO 11-30 07:51:38 [loggers.py:1] Engine 000: Avg generation throughput: 3.0\n"
    )
    told = explain(log)
    assert (told["cause"], told["verdicts"], told["secondary"]) == (None, [], [])


def test_a_healthy_log_has_no_verdict() -> None:
    told = explain(FIXTURES / "vllm-0.32-tp2" / "rank0-boot.log")
    assert (told["cause"], told["verdicts"], told["secondary"]) == (None, [], [])


def test_a_gigabyte_of_noise_has_no_verdict_and_takes_no_time(tmp_path: Path) -> None:
    chance = random.Random(7)
    words = [
        "".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 10))) for _ in range(900)
    ]
    block = "".join(
        f"(Worker_TP{chance.randint(0, 3)} pid={chance.randint(1, 99999)}) "
        f"{chance.choice(['INFO', 'WARNING', 'ERROR'])} 11-30 07:{chance.randint(10, 59)}:00 "
        f"[x.py:{chance.randint(1, 999)}] {' '.join(chance.choices(words, k=12))}\n"
        for _ in range(8_000)
    ).encode()
    log = tmp_path / "noise.log"
    with log.open("wb") as file:
        for _ in range(1_000_000_000 // len(block) + 1):
            file.write(block)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    told = explain(log)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime  # others use this machine too
    log.unlink()
    assert (told["cause"], told["verdicts"]) == (None, [])
    assert any("noise.log" in gap for gap in told["not_known"])
    assert took < 10, f"{took:.1f} s"


def test_what_is_at_the_end_of_a_long_log_is_found(tmp_path: Path) -> None:
    log = tmp_path / "rank1.log"
    with log.open("wb") as file:
        for _ in range(3_000):
            file.write(b"INFO 11-30 07:49:17 [x.py:1] Avg generation throughput: 12.0 tokens/s\n" * 1_000)
        file.write(b"RuntimeError: CUDA error: out of memory\n")
    told = explain(log)
    assert (told["cause"]["id"], told["cause"]["rank"]) == ("CUDA_OOM", 1)
    log.unlink()


def test_bytes_that_are_no_text_have_no_verdict(tmp_path: Path) -> None:
    log = tmp_path / "random.bin"
    log.write_bytes(random.Random(7).randbytes(32 << 20))
    assert explain(log)["cause"] is None


def test_what_is_no_file_is_said(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "sparkd", "explain", "--log", str(tmp_path / "nope.log")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert "nope.log is no file" in run.stderr


def test_a_bundle_holds_no_secret(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    log.write_text(
        "Received request cmpl-1: prompt: 'CUDA out of memory, my dear', params: SamplingParams(n=1)\n"
        "RuntimeError: CUDA error: out of memory while serving with --api-key abc123XYZ\n"
    )
    bundle = tmp_path / "report.json"
    words = [sys.executable, "-m", "sparkd", "explain", "--log", str(log), "--bundle", str(bundle)]
    run = subprocess.run(words, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "CUDA_OOM" in run.stdout
    text = bundle.read_text()
    assert json.loads(text)["explanation"]["cause"]["id"] == "CUDA_OOM"
    assert "abc123XYZ" not in text
    assert "my dear" not in text
    assert bundle.stat().st_mode & 0o077 == 0


BEGAN = "(APIServer pid=1) INFO 11-30 21:00:00 [api_server.py:1] vLLM API server version 0.32.0\n"
SERVED = "(APIServer pid=1) INFO:     Application startup complete.\n"
ASKED = (
    "(APIServer pid=1) INFO 11-30 21:59:27 [launcher.py:254] [shutdown] API server: shutdown triggered\n"
    "(APIServer pid=1) WARNING 11-30 21:59:27 [utils.py:648] [shutdown] Process manager: force killing "
    "remaining processes count=1\n"
)
GAVE_UP = (
    "(EngineCore pid=7) ERROR 11-30 21:59:27 [core.py:1] EngineCore encountered a fatal error.\n"
    "(EngineCore pid=7) ERROR 11-30 21:59:27 [core.py:1] ValueError: nobody knows this one\n"
)
DIED = (
    "(EngineCore pid=7) ERROR 11-30 21:59:27 [multiproc_executor.py:1] Worker proc VllmWorker-0 died "
    "unexpectedly (exit code: -9), shutting down executor.\n"
)


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (BEGAN + SERVED + ASKED, "PROCESS_TERMINATED"),
        (BEGAN + SERVED + ASKED + GAVE_UP, "PROCESS_TERMINATED"),
        (BEGAN + SERVED + GAVE_UP + ASKED, "UNKNOWN"),
        (BEGAN + SERVED + DIED + ASKED, "PROCESS_KILLED"),
        (BEGAN + SERVED + ASKED + BEGAN + SERVED, None),
    ],
    ids=["asked", "asked-then-gave-up", "gave-up-then-asked", "killed-then-asked", "of-an-earlier-life"],
)
def test_an_engine_that_was_asked_to_end_is_told_so_unless_something_ended_before(
    tmp_path: Path, log: str, cause: str | None
) -> None:
    (tmp_path / "rank0.log").write_text(log)
    told = explain(tmp_path / "rank0.log")
    assert (told["cause"] and told["cause"]["id"]) == cause
    if cause == "PROCESS_TERMINATED":
        assert told["verdicts"][0]["title"] == "the engine was asked to end"


def test_what_ended_in_the_same_second_on_another_rank_may_have_been_first(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(BEGAN + SERVED + ASKED)
    (tmp_path / "rank1.log").write_text(DIED)
    assert explain(tmp_path / "rank0.log", tmp_path / "rank1.log")["cause"]["id"] == "PROCESS_KILLED"

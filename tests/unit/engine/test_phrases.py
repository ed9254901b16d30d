from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.engine.phrases import PHASES, later, read_line, telling_lines
from sparkd.records.report import RankPhase

CAPTURE = Path(__file__).parents[2] / "fixtures" / "vllm-0.32-tp2"


def lines(name: str) -> list[str]:
    return (CAPTURE / name).read_text().splitlines()


def phases(name: str) -> list[RankPhase]:
    sightings = [read_line(line) for line in lines(name)]
    return [s.phase for s in sightings if s is not None and s.phase is not None]


def test_a_real_head_passes_all_phases_in_order() -> None:
    seen = phases("rank0-boot.log")
    assert list(dict.fromkeys(seen)) == list(PHASES)
    assert all(later(a, b) == b for a, b in pairwise(seen))


def test_a_real_follower_is_last_seen_warming() -> None:
    assert list(dict.fromkeys(phases("rank1.log"))) == ["launching", "rendezvous", "loading", "warming"]


def test_facts_of_a_real_boot() -> None:
    facts: dict[str, str] = {}
    for line in lines("rank0-boot.log"):
        sighting = read_line(line)
        facts |= sighting.facts if sighting else {}
    assert facts["mq_connect_ip"] == "10.77.0.10"
    assert facts["rendezvous"] == "10.77.0.10:29511"
    assert facts["backend"] == "gloo"
    assert facts["kv_tokens"] == "2,097,152"
    assert facts["version"] == "0.32.0"


@pytest.mark.parametrize(
    ("line", "phase", "percent", "detail"),
    [
        (
            "Loading safetensors checkpoint shards:  45% Completed | 9/20 [00:10<00:12, 1.1s/it]",
            "loading",
            45.0,
            "loading weights, shard 9 of 20",
        ),
        (
            "Loading safetensors checkpoint shards (eager):   0% Completed | 0/1 [00:00<?, ?it/s]",
            "loading",
            0.0,
            "loading weights, shard 0 of 1",
        ),
        (
            "Loading safetensors using Runai Model Streamer: 100% Completed | 3/3 [00:00<00:00, 9it/s]",
            "loading",
            100.0,
            "loading weights, shard 3 of 3",
        ),
        (
            "(Worker_TP1 pid=7) INFO 11-30 07:48:34 [w.py:1] Prefetching checkpoint files: 40% (8/20)",
            "loading",
            40.0,
            "prefetching weights, file 8 of 20",
        ),
        (
            "Capturing CUDA graphs (decode, FULL):  45%|####      | 5/11 [00:01<00:01,  4.5it/s]",
            "warming",
            45.0,
            "capturing CUDA graphs",
        ),
        (
            "\rCapturing CUDA graphs:   9%|# | 1/11\rCapturing CUDA graphs:  18%|# | 2/11\r",
            "warming",
            18.0,
            "capturing CUDA graphs",
        ),
        (
            "(EngineCore pid=1) INFO 11-30 07:48:35 [k.py:1] GPU KV cache size: 7,235,872 tokens, ...",
            "warming",
            None,
            "KV cache of 7,235,872 tokens",
        ),
        (
            "(Worker pid=1) INFO 11-30 07:48:35 [g.py:1] Model loading took 12.5 GiB memory and 80.1 seconds",
            "warming",
            None,
            "weights loaded",
        ),
        ("INFO:     Application startup complete.", "serving", None, "serving"),
    ],
)
def test_wordings(line: str, phase: RankPhase, percent: float | None, detail: str) -> None:
    sighting = read_line(line)
    assert sighting is not None
    assert (sighting.phase, sighting.percent, sighting.detail) == (phase, percent, detail)
    assert not sighting.heartbeat


@pytest.mark.parametrize(
    "line",
    [
        "(EngineCore pid=1) INFO 11-30 [s.py:1] No available shared memory broadcast block found in 60 s",
        "(APIServer pid=1) INFO 11-30 [l.py:1] Engine 000: Avg generation throughput: 0.0 tokens/s, ...",
        'INFO:     127.0.0.1:52508 - "GET /health HTTP/1.1" 200 OK',
        "[W1130 07:48:30.1 TCPStore.cpp:347] [c10d] TCPStore recvValueWithTimeout failed: Broken pipe",
        "(APIServer pid=1) INFO 11-30 [u.py:1] Waiting for 1 local, 0 remote core engine proc(s) to start.",
    ],
)
def test_heartbeats(line: str) -> None:
    sighting = read_line(line)
    assert sighting is not None
    assert sighting.heartbeat
    assert sighting.phase is None


def test_an_unknown_line_says_nothing() -> None:
    assert read_line("INFO:     Waiting for application startup.") is None
    assert read_line("") is None


@given(st.text())
def test_any_line_can_be_read(text: str) -> None:
    read_line(text)
    assert len(telling_lines([text], 3)) <= 1


def test_telling_lines_of_a_killed_worker() -> None:
    (line,) = telling_lines(lines("rank1.log"))
    assert "Worker proc VllmWorker-1 died unexpectedly (exit code: -9)" in line


def test_telling_lines_begin_with_the_first_cause_and_leave_out_frames_and_dumps() -> None:
    told = telling_lines(lines("rank0-death.log"), limit=3)
    assert "WorkerProc hit an exception" in told[0]
    assert "RuntimeError: [/__w/pytorch" in told[1]
    assert all("Dumping" not in line and 'File "' not in line for line in told)
    (most_telling,) = telling_lines(lines("rank0-death.log"), limit=1)
    assert "Connection closed by peer" in most_telling


def test_telling_lines_are_few_short_and_different() -> None:
    noise = [f"(Worker pid={n}) ERROR 11-30 07:49:45 [a.py:{n}] step {n} failed" for n in range(1000)]
    told = telling_lines([*noise, "ValueError: " + "x" * 10_000], limit=5)
    assert len(told) == 2
    assert all(len(line) <= 400 for line in told)

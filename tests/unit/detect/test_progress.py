from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sparkd.detect.progress import SEEN_LIMIT, Progress, ProgressSample, begin, observe

CAPTURE = Path(__file__).parents[2] / "fixtures" / "vllm-0.32-tp2"
HEARTBEAT = (
    "(Worker pid=7) INFO 11-30 07:48:{s:02} [shm_broadcast.py:1] No available shared memory broadcast block"
)
GIB = 1 << 30


def loading(now: float = 0.0, weights_bytes: int = 0) -> Progress:
    return observe(begin(now, weights_bytes), ProgressSample(phase="loading"), now)


def test_a_real_boot_progresses_line_by_line() -> None:
    progress = begin(0.0)
    for now, line in enumerate((CAPTURE / "rank0-boot.log").read_text().splitlines()):
        progress = observe(progress, ProgressSample(lines=(line,)), float(now))
        if progress.phase == "loading":
            assert progress.percent is None or progress.percent < 100
    assert progress.phase == "serving"
    assert progress.percent == 100
    assert progress.facts["mq_connect_ip"] == "10.77.0.10"
    assert progress.detail == "serving"


def test_the_same_line_with_other_numbers_is_no_progress() -> None:
    progress = loading()
    progress = observe(progress, ProgressSample(lines=("retry 1 of 0xdeadbeef after 2.5 s",)), 1.0)
    progress = observe(progress, ProgressSample(lines=("retry 27 of 0xfeed after 9.75 s",)), 50.0)
    assert progress.progressed_at == 1.0


def test_the_same_line_counts_again_in_a_new_phase() -> None:
    progress = observe(loading(), ProgressSample(lines=("using layout A",)), 1.0)
    progress = observe(progress, ProgressSample(phase="warming"), 2.0)
    progress = observe(progress, ProgressSample(lines=("using layout A",)), 3.0)
    assert progress.progressed_at == 3.0


def test_a_bar_counts_only_when_it_shows_more_than_ever() -> None:
    bar = "Loading safetensors checkpoint shards:  {p}% Completed | {n}/20 [00:10<00:12, 1.1s/it]"
    progress = loading()
    for now, (p, n) in enumerate([(10, 2), (45, 9), (45, 9), (10, 2)], start=1):
        progress = observe(progress, ProgressSample(lines=(bar.format(p=p, n=n),)), float(now))
    assert progress.progressed_at == 2.0
    assert progress.percent == 45
    assert progress.detail == "loading weights, shard 2 of 20"


def test_percent_from_bytes_when_the_rank_prints_nothing() -> None:
    progress = begin(0.0, weights_bytes=10 * GIB)
    progress = observe(progress, ProgressSample(read_bytes=1 * GIB, phase="launching"), 1.0)
    progress = observe(progress, ProgressSample(read_bytes=1 * GIB, phase="loading"), 2.0)
    progress = observe(progress, ProgressSample(read_bytes=6 * GIB), 3.0)
    assert progress.percent == 50, "what was read before loading began does not count"
    progress = observe(progress, ProgressSample(read_bytes=99 * GIB), 4.0)
    assert progress.percent == 99, "only a phase that has passed is complete"
    assert progress.phase == "loading"


def test_phases_never_go_back() -> None:
    progress = observe(loading(), ProgressSample(lines=("Loading weights took 2.0 seconds",)), 1.0)
    progress = observe(progress, ProgressSample(lines=("Starting to load model draft...",)), 2.0)
    assert progress.phase == "warming"
    assert progress.phase_since == 1.0


def test_memory_growth_counts_and_a_saw_tooth_does_not() -> None:
    progress = observe(loading(), ProgressSample(rss_bytes=GIB), 1.0)
    assert progress.progressed_at == 1.0
    for now in range(2, 20):
        progress = observe(progress, ProgressSample(rss_bytes=GIB if now % 2 else GIB // 2), float(now))
    assert progress.progressed_at == 1.0


def test_slow_growth_adds_up() -> None:
    progress = loading()
    for now in range(1, 101):
        progress = observe(progress, ProgressSample(rss_bytes=now << 20), float(now))
    assert progress.age(100.0) < 10


def test_compiler_time_counts_in_any_phase() -> None:
    progress = loading()
    for now in range(1, 60):
        sample = ProgressSample(compiler_cpu_s=now * 0.9, compiling=True)
        progress = observe(progress, sample, float(now))
    assert progress.age(59.0) <= 1


def test_own_cpu_counts_only_while_compiling_and_warming() -> None:
    def last_progress(phase: str, *, compiling: bool) -> float:
        progress = observe(begin(0.0), ProgressSample(phase="loading"), 0.0)
        if phase == "warming":
            progress = observe(progress, ProgressSample(phase="warming"), 0.0)
        for now in range(1, 60):
            progress = observe(progress, ProgressSample(cpu_s=float(now), compiling=compiling), float(now))
        return progress.progressed_at

    assert last_progress("warming", compiling=True) == 59.0
    assert last_progress("warming", compiling=False) == 0.0
    assert last_progress("loading", compiling=True) == 0.0


def test_the_memory_of_lines_is_bounded() -> None:
    progress = loading()
    names = ["".join(chr(ord("g") + int(digit)) for digit in str(n)) for n in range(3 * SEEN_LIMIT)]
    for now, name in enumerate(names, start=1):
        progress = observe(progress, ProgressSample(lines=(name,)), float(now))
    assert len(progress.seen) == SEEN_LIMIT
    assert progress.progressed_at == SEEN_LIMIT, (
        "a rank that prints ever new texts does not progress for ever"
    )


NOISE = st.sampled_from(
    [
        HEARTBEAT.format(s=1),
        HEARTBEAT.format(s=59),
        'INFO:     127.0.0.1:52508 - "GET /health HTTP/1.1" 200 OK',
        "[W1130 07:48:30.1 TCPStore.cpp:347] [c10d] recvValue failed: Broken pipe",
        "(APIServer pid=1) INFO 11-30 07:49:01 [l.py:335] Avg generation throughput: 0.0 tokens/s",
        "attempt 17",
        "",
    ]
)


@given(st.lists(st.tuples(st.lists(NOISE, max_size=3), st.floats(0.1, 60.0)), max_size=40))
def test_a_spinner_with_heartbeats_never_progresses(ticks: list[tuple[list[str], float]]) -> None:
    """100 % of a core and the heartbeat line for ever."""
    progress = observe(loading(), ProgressSample(lines=("attempt 0",)), 0.0)
    now = 0.0
    for lines, seconds in ticks:
        now += seconds
        progress = observe(progress, ProgressSample(lines=tuple(lines), cpu_s=now, rss_bytes=1 << 20), now)
    assert progress.progressed_at == 0.0
    assert progress.age(now) == now


@given(st.lists(st.tuples(st.integers(1 << 18, 1 << 34), st.floats(0.1, 600.0)), min_size=1, max_size=40))
def test_a_silent_reader_always_progresses(reads: list[tuple[int, float]]) -> None:
    progress = loading(weights_bytes=1 << 36)
    now, total = 0.0, 0
    for size, seconds in reads:
        now, total = now + seconds, total + size
        progress = observe(progress, ProgressSample(read_bytes=total), now)
        assert progress.age(now) == 0
        assert progress.percent is not None
        assert 0 <= progress.percent < 100


@given(st.lists(st.integers(0, 1 << 34), max_size=40))
def test_age_never_runs_ahead_and_phases_hold(sizes: list[int]) -> None:
    progress = loading()
    for now, size in enumerate(sizes):
        before = progress.progressed_at
        progress = observe(progress, ProgressSample(read_bytes=size, rss_bytes=size), float(now))
        assert before <= progress.progressed_at <= max(before, now)
        assert progress.phase == "loading"

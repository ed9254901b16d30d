from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sparkd.engine.metrics import Counters, read_metrics

REAL = Path(__file__).parents[2] / "fixtures" / "vllm-0.32-tp2" / "metrics.txt"


def test_reads_the_metrics_of_a_real_engine() -> None:
    assert read_metrics(REAL.read_text()) == Counters(
        prompt_tokens=54,
        generation_tokens=48,
        iterations=48,
        iteration_tokens=102,
        running=0,
        waiting=0,
        kv_usage=0,
    )


def test_sums_over_engines_and_ignores_neighbours() -> None:
    text = (
        'vllm:num_requests_waiting{engine="0"} 2.0\n'
        'vllm:num_requests_waiting{engine="1"} 3.0\n'
        'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 40.0\n'
        'vllm:prompt_tokens_created{engine="0"} 1.7e9\n'
        'other:num_requests_waiting{engine="0"} 50.0\n'
    )
    assert read_metrics(text) == Counters(waiting=5.0)


def test_labels_with_spaces_braces_and_time_stamps() -> None:
    text = 'vllm:num_requests_running{model_name="a } b 7"} 3 1700000000\nvllm:num_requests_waiting 4\n'
    assert read_metrics(text) == Counters(running=3.0, waiting=4.0)


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    assert isinstance(read_metrics(text), Counters)


@given(st.text(alphabet='{}" =1.e-\n'))
def test_any_value_can_be_read(text: str) -> None:
    assert isinstance(read_metrics("vllm:num_requests_running" + text), Counters)


def test_tokens_since() -> None:
    def tokens(before: float | None, after: float | None) -> bool:
        return Counters(generation_tokens=after).tokens_since(Counters(generation_tokens=before))

    assert tokens(5, 6)
    assert not tokens(5, 5)
    assert tokens(None, 1)
    assert not tokens(None, 0)
    assert not tokens(5, None)
    assert tokens(500, 2), "the counter began anew, and has counted since"
    assert not tokens(500, 0)


def test_a_growing_kv_cache_is_movement_without_tokens() -> None:
    before, after = Counters(generation_tokens=5, kv_usage=0.1), Counters(generation_tokens=5, kv_usage=0.2)
    assert after.moved_since(before)
    assert not after.tokens_since(before)

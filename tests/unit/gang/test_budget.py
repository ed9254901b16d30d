from hypothesis import given
from hypothesis import strategies as st

from sparkd.gang.budget import Budget, Policy, allowance, refill_after_s
from sparkd.records.defaults import DEFAULTS

POLICY = Policy(budget=3, backoff_s=5.0, backoff_max_s=300.0)


def test_delays_double_up_to_the_cap_and_the_budget_ends_it() -> None:
    budget, delays = Budget(), []
    for fall in range(3):
        budget = budget.charge(100.0 * fall, "normal")
        judged = allowance(budget, POLICY, "normal", f"g{fall}")
        assert judged.allowed
        delays.append(judged.delay_s)
    for delay, base in zip(delays, (5, 10, 20), strict=True):
        assert base <= delay <= base * 1.25
    budget = budget.charge(400.0, "normal")
    last = allowance(budget, POLICY, "normal", "g4")
    assert not last.allowed
    assert "budget 3" in last.reason


def test_a_cause_that_a_retry_cannot_cure_is_not_retried() -> None:
    judged = allowance(Budget().charge(0.0, "never"), POLICY, "never", "g1")
    assert not judged.allowed
    assert judged.reason


def test_memory_gets_one_try() -> None:
    once = Budget().charge(0.0, "memory")
    assert allowance(once, POLICY, "memory", "g1").allowed
    assert not allowance(once.charge(1.0, "memory"), POLICY, "memory", "g2").allowed


def test_a_refill_keeps_the_count_of_the_day() -> None:
    budget = Budget()
    for hour in range(DEFAULTS.restart_day_limit):
        budget = budget.charge(hour * 3600.0, "normal").refill()
        assert allowance(budget.charge(hour * 3600.0, "normal"), POLICY, "normal", "g").allowed or hour > 0
    full = budget.charge(10 * 3600.0, "normal")
    assert not allowance(full, POLICY, "normal", "g").allowed
    next_day = budget.charge(34 * 3600.0, "normal")
    assert allowance(next_day, POLICY, "normal", "g").allowed


def test_refill_needs_ten_minutes_or_twice_the_boot() -> None:
    assert refill_after_s(30.0) == DEFAULTS.restart_refill_s
    assert refill_after_s(1800.0) == 3600.0


@given(
    falls=st.lists(st.floats(0, 1e6, allow_nan=False), max_size=40),
    limit=st.integers(0, 12),
)
def test_no_sequence_of_falls_without_a_refill_exceeds_the_budget(falls: list[float], limit: int) -> None:
    policy = Policy(budget=limit, backoff_s=1.0, backoff_max_s=10.0)
    budget, restarts = Budget(), 0
    for number, wall in enumerate(sorted(falls)):
        budget = budget.charge(wall, "normal")
        judged = allowance(budget, policy, "normal", str(number))
        assert 0 <= judged.delay_s <= 10.0 * (1 + DEFAULTS.restart_jitter)
        if not judged.allowed:
            break
        restarts += 1
    assert restarts <= limit

"""The pulse against a model of an engine: steps of a second, looks every other second as the prober does."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.detect.wedge import (
    Limits,
    Look,
    Pulse,
    SendPulse,
    Stopped,
    Wedged,
    answered,
    decide,
    failed,
    look,
    sent,
)
from sparkd.engine.metrics import Counters

LIMITS = Limits()
BOUND = LIMITS.silence_s + LIMITS.timeout_s
TICKS = 4.0
"""How much later than in theory things may be seen: one look and one step."""

Reading = Counters | None


@dataclass(frozen=True)
class Engine:
    """What an engine shows at a time, given in seconds."""

    counters: Callable[[float], Reading]
    answers_after: Callable[[float], float | None]
    """For a pulse sent at that time: seconds until a token comes; None: never."""
    compiling: Callable[[float], bool] = lambda _: False
    stopped: Callable[[float], tuple[Stopped, ...]] = lambda _: ()
    reachable: Callable[[float], bool] = lambda _: True


@dataclass(frozen=True)
class Outcome:
    wedged: Wedged | None
    at: float
    oldest_proof: float
    pulses: int


def watch(engine: Engine, seconds: int) -> Outcome:
    pulse = Pulse(began_at=0.0)
    due: float | None = None
    oldest, pulses = 0.0, 0
    for second in range(seconds):
        now = float(second)
        if due is not None and now >= due:
            pulse, due = answered(pulse, now), None
        if second % 2 == 0:
            seen = Look(engine.counters(now), engine.compiling(now), engine.stopped(now))
            pulse = look(pulse, seen, now, LIMITS)
        match decide(pulse, now, LIMITS):
            case Wedged() as wedged:
                return Outcome(wedged, now, oldest, pulses)
            case SendPulse():
                pulses += 1
                pulse, due = sent(pulse, now), None
                if not engine.reachable(now):
                    pulse = failed(pulse, "the API refuses connections", now)
                elif (latency := engine.answers_after(now)) is not None:
                    due = now + latency
        oldest = max(oldest, pulse.proof_age(now) or 0.0)
    return Outcome(None, float(seconds), oldest, pulses)


def still(_: float) -> Counters:
    return Counters(
        prompt_tokens=10, generation_tokens=5, iterations=5, iteration_tokens=15, running=0, kv_usage=0
    )


def tokens_until(end: float, every: float = 1.0) -> Callable[[float], Counters]:
    return lambda now: replace(still(now), generation_tokens=5 + min(now, end) // every)


# What must not count as a wedge.


@given(latency=st.floats(0, 15))
def test_idleness(latency: float) -> None:
    outcome = watch(Engine(still, lambda _: latency), 300)
    assert outcome.wedged is None
    assert outcome.oldest_proof <= LIMITS.silence_s + latency + TICKS
    assert outcome.pulses <= 300 / LIMITS.silence_s + 2


@given(
    chunk=st.integers(1, 15), start=st.integers(5, 50), counter=st.sampled_from(["kv_usage", "prompt_tokens"])
)
def test_long_prefill(chunk: int, start: int, counter: str) -> None:
    """Ten minutes without a token: in 0.32 only the KV gauge moves, in other versions prompt tokens."""

    def prefill(now: float) -> Counters:
        return replace(still(now), **{counter: 10 + max(0, min(600, now - start)) // chunk})

    end = start + 600
    outcome = watch(Engine(prefill, lambda now: 1 if now < start else max(1, end - now + 1)), 900)
    assert outcome.wedged is None


@given(every=st.integers(1, 10))
def test_slow_pulse_under_load(every: int) -> None:
    """Tokens flow and the pulse waits in the queue for ever."""
    outcome = watch(Engine(tokens_until(1e9, every), lambda _: None), 600)
    assert outcome.wedged is None
    assert outcome.oldest_proof <= every + TICKS


@given(busy=st.integers(5, 100))
def test_a_pulse_lost_under_load_is_not_held_against_an_idle_engine(busy: int) -> None:
    outcome = watch(Engine(tokens_until(busy), lambda now: None if now < busy else 1), 300)
    assert outcome.wedged is None


@given(seconds=st.integers(1, 590))
def test_compilation(seconds: int) -> None:
    compiling = Engine(
        still,
        lambda now: 1 if now < 30 else max(1.0, 30 + seconds - now),
        compiling=lambda now: 30 <= now < 30 + seconds,
    )
    assert watch(compiling, 900).wedged is None


@given(down=st.integers(1, 50))
def test_an_api_that_was_out_of_reach(down: int) -> None:
    """A pulse that was not delivered says nothing about the engine."""

    def reachable(now: float) -> bool:
        return not 40 <= now < 40 + down

    engine = Engine(lambda now: still(now) if reachable(now) else None, lambda _: 1, reachable=reachable)
    assert watch(engine, 300).wedged is None


# What must.


@given(freeze=st.integers(0, 100))
def test_a_dead_collective_while_idle(freeze: int) -> None:
    outcome = watch(Engine(still, lambda now: 0 if now < freeze else None), 300)
    assert outcome.wedged is not None
    assert outcome.wedged.kind == "collective"
    # Also true beside what another node knows: that a process of its own is stopped.
    assert "a collective does not return, and no process of this node is stopped" in outcome.wedged.reason
    assert freeze < outcome.at <= freeze + BOUND + TICKS


@given(freeze=st.integers(1, 100))
def test_a_dead_collective_under_load(freeze: int) -> None:
    outcome = watch(Engine(tokens_until(freeze), lambda now: 0 if now < freeze else None), 300)
    assert outcome.wedged is not None
    assert outcome.wedged.kind == "collective"
    assert freeze < outcome.at <= freeze + BOUND + TICKS
    assert outcome.oldest_proof <= BOUND + TICKS, "`ready` was true of this long ago at most"


@given(freeze=st.integers(1, 100), busy=st.booleans())
def test_a_stopped_worker_is_named_and_sooner(freeze: int, busy: bool) -> None:
    worker = Stopped("rank 1's VLLM::Worker_TP1 (pid 812)", float(freeze))
    engine = Engine(
        tokens_until(freeze) if busy else still,
        lambda now: 0 if now < freeze else None,
        stopped=lambda now: (worker,) if now >= freeze else (),
    )
    outcome = watch(engine, 300)
    assert outcome.wedged is not None
    assert outcome.wedged.kind == "stopped"
    assert "rank 1's VLLM::Worker_TP1 (pid 812)" in outcome.wedged.reason
    assert freeze + LIMITS.stopped_s <= outcome.at <= freeze + LIMITS.stopped_s + TICKS


def test_a_stopped_process_that_no_token_needs() -> None:
    bystander = (Stopped("rank 0's VLLM::APIServer_2 (pid 9)", 20.0),)
    engine = Engine(still, lambda _: 0, stopped=lambda now: bystander if now >= 20 else ())
    assert watch(engine, 300).wedged is None


def test_a_stop_of_less_than_its_limit() -> None:
    worker = (Stopped("rank 1's worker", 20.0),)
    engine = Engine(
        still,
        lambda now: max(0.0, 28 - now) if now >= 20 else 0,
        stopped=lambda now: worker if 20 <= now < 28 else (),
    )
    assert watch(engine, 300).wedged is None


def test_a_compiler_that_never_ends() -> None:
    outcome = watch(Engine(still, lambda _: None, compiling=lambda _: True), 900)
    assert outcome.wedged is not None
    assert "compiler" in outcome.wedged.reason
    assert LIMITS.compile_excuse_s <= outcome.at <= LIMITS.compile_excuse_s + LIMITS.timeout_s + TICKS


def test_a_row_of_short_compilations_excuses_no_longer_than_one() -> None:
    outcome = watch(Engine(still, lambda _: None, compiling=lambda now: now % 10 < 4), 900)
    assert outcome.wedged is not None
    assert outcome.at <= LIMITS.compile_excuse_s + LIMITS.timeout_s + TICKS


def test_an_api_that_refuses_for_good() -> None:
    engine = Engine(lambda _: None, lambda _: 1, reachable=lambda now: now < 40)
    outcome = watch(engine, 300)
    assert outcome.wedged is not None
    assert outcome.wedged.kind == "api"
    assert "refuses connections" in outcome.wedged.reason
    assert outcome.at >= 40 + LIMITS.undelivered_s


def test_an_api_that_takes_everything_and_answers_nothing() -> None:
    engine = Engine(lambda now: still(now) if now < 40 else None, lambda now: 1 if now < 40 else None)
    outcome = watch(engine, 300)
    assert outcome.wedged is not None
    assert outcome.wedged.kind == "api"
    assert outcome.at <= 40 + LIMITS.silence_s + LIMITS.undelivered_s + TICKS


# The pieces.


def test_the_first_pulse_is_due_at_once() -> None:
    assert decide(Pulse(began_at=7.0), 7.0, LIMITS) == SendPulse("no token yet")


def test_the_first_look_is_no_proof() -> None:
    pulse = look(Pulse(began_at=0.0), Look(still(0)), 1.0, LIMITS)
    assert pulse.proof_at is None
    assert pulse.proof_age(5.0) is None


def test_new_tokens_are_a_proof_of_the_time_before() -> None:
    pulse = look(Pulse(began_at=0.0), Look(Counters(generation_tokens=1)), 1.0, LIMITS)
    pulse = look(pulse, Look(Counters(generation_tokens=2)), 3.0, LIMITS)
    assert pulse.proof_age(5.0) == 4.0


@pytest.mark.parametrize("seconds", [0.0, 1.0, 1.9])
def test_a_failed_pulse_is_not_repeated_at_once(seconds: float) -> None:
    pulse = failed(sent(Pulse(began_at=0.0), 1.0), "refused", 1.0)
    assert decide(pulse, 1.0 + seconds, LIMITS) is None
    assert decide(pulse, 1.0 + LIMITS.retry_s, LIMITS) == SendPulse("no token yet")


def test_a_token_ends_a_row_of_failures() -> None:
    pulse = failed(Pulse(began_at=0.0), "refused", 1.0)
    pulse = answered(sent(pulse, 50.0), 51.0)
    pulse = failed(sent(pulse, 70.0), "refused", 70.0)
    assert not isinstance(decide(pulse, 72.0, LIMITS), Wedged)

"""A process that is stopped on a follower's node: named when a token that was asked for has not come."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sparkd.clock import Instant
from sparkd.fleet.nodes import Node
from sparkd.gang import machine
from sparkd.gang.state import Gang, GangCommand, Tick, World
from sparkd.records.defaults import DEFAULTS
from sparkd.records.report import ProbeReport, RankReport
from tests.unit.gang.test_mods import gang

STOPPED_AT = 100.0
WORDS = "VLLM::Worker_TP1 (pid 7) is stopped (state T)"


def step(
    before: Gang,
    now: float,
    *,
    token_at: float,
    moved_at: float | None = None,
    head: bool = True,
    stopped: bool = True,
    counted_from: float = 0.0,
    names: tuple[str, ...] = (WORDS,),
    stopped_at: tuple[float, ...] = (STOPPED_AT,),
    each: bool = True,
) -> tuple[Gang, tuple[GangCommand, ...]]:
    """One second of a gang of two whose follower has a process that stands still since STOPPED_AT."""
    nodes = {}
    for spec, name in zip(before.record.specs, "ab", strict=True):
        report = RankReport(spec.name, "running", phase="serving")
        if spec.rank == 0:
            moved = now - (token_at if moved_at is None else moved_at)
            probe = ProbeReport(api_up=True, warmed=True, proof_age_s=now - token_at, moved_age_s=moved)
            report = replace(report, probe=probe)
        elif stopped:
            ages = tuple(now - at for at in stopped_at)
            report = replace(report, stopped=names, stopped_s=ages[0], stopped_each_s=ages if each else ())
        state: Any = "alive" if head or spec.rank else "silent"
        nodes[name] = Node(
            name, f"node-{name}", greeted=True, heard=now, state=state, reports={report.name: report}
        )
    world = World(nodes, silence_counts_from=counted_from)
    return machine.step(before, Tick(), world, Instant(now, now))


def played(
    seconds: int, token_at: Callable[[float], float], moved_at: Callable[[float], float] | None = None
) -> tuple[float | None, Gang, int]:
    """Seconds after the stop until the gang was no longer ready, how it stands, how often it was asked."""
    ready = replace(gang("ready"), ready_since=0.0)
    asked = 0
    for after in range(seconds):
        now = STOPPED_AT + after
        ready, _ = step(ready, now, token_at=token_at(now), moved_at=moved_at and moved_at(now))
        asked += sum(one.task.kind == "canary" for one in ready.tasks)
        ready = replace(ready, tasks=())
        if ready.record.phase != "ready":
            return after, ready, asked
    return None, ready, asked


def test_it_is_named_ten_seconds_later() -> None:
    # The look that saw the last tokens came after the stop, which a token is not told of but a counter.
    known, after, asked = played(60, lambda _now: STOPPED_AT - 1, lambda now: min(now, STOPPED_AT + 1.5))
    assert known == DEFAULTS.stopped_state_s
    fall = after.record.fall
    assert fall is not None
    assert (fall.cause, fall.rank, fall.node) == ("ENGINE_WEDGED", 1, "node-b")
    assert WORDS in fall.reason
    assert asked, "nothing is judged that was not asked for"


def test_a_helper_that_nothing_waits_for_may_stand_still() -> None:
    """An idle gang: the token that was asked for comes. With tokens nobody is asked."""
    known, _, asked = played(120, lambda now: STOPPED_AT + (6 if now >= STOPPED_AT + 6 else -1))
    assert known is None
    assert asked
    known, _, asked = played(120, lambda now: now)
    assert known is None
    assert not asked


def test_a_long_prefill_beside_such_a_helper_is_not_ended() -> None:
    """No token for minutes, also not the one that was asked for, but a counter that moves."""
    known, _, _ = played(120, lambda _now: STOPPED_AT - 1, lambda now: now - now % 3)
    assert known is None


def test_without_rank_0s_agent_nobody_is_asked() -> None:
    ready = replace(gang("ready"), ready_since=STOPPED_AT)
    after, _ = step(ready, STOPPED_AT + 20, token_at=STOPPED_AT - 1, head=False)
    assert after.record.fall is None


def test_what_goes_on_in_time_is_not_ended() -> None:
    ready = replace(gang("ready"), ready_since=0.0)
    for after in range(9):
        ready, _ = step(ready, STOPPED_AT + after, token_at=STOPPED_AT - 1)
    for after in range(9, 30):
        ready, _ = step(ready, STOPPED_AT + after, token_at=STOPPED_AT - 1, stopped=False)
    assert ready.record.phase == "ready"


def test_what_was_asked_before_we_stood_still_is_asked_anew() -> None:
    """The proof may lie in reports that nobody has read yet."""
    ready = replace(gang("ready"), ready_since=0.0)
    for after in range(6):
        ready, _ = step(ready, STOPPED_AT + after, token_at=STOPPED_AT - 1)
    assert ready.proof_asked is not None
    back = STOPPED_AT + 30
    ready, _ = step(replace(ready, tasks=()), back, token_at=STOPPED_AT - 1, counted_from=back)
    assert ready.record.phase == "ready"


def test_a_report_that_names_no_process_is_passed_over() -> None:
    ready = replace(gang("ready"), ready_since=0.0)
    for after in range(int(DEFAULTS.stopped_state_s) + 1):
        ready, _ = step(ready, STOPPED_AT + after, token_at=STOPPED_AT - 1, names=())
    assert ready.record.phase == "ready"


def test_an_old_helper_hides_no_fresh_stop() -> None:
    """Tokens came for an hour beside the helper; none has come since the worker stands still."""
    ready = replace(gang("ready"), ready_since=0.0)
    names = ("helper (pid 3) is stopped (state T)", WORDS)
    for after in range(int(DEFAULTS.stopped_state_s) + 1):
        now = STOPPED_AT + after
        stops = (STOPPED_AT - 3600.0, STOPPED_AT)
        ready, _ = step(ready, now, token_at=STOPPED_AT - 1, names=names, stopped_at=stops)
    fall = ready.record.fall
    assert fall is not None
    assert (fall.cause, fall.rank) == ("ENGINE_WEDGED", 1)
    assert WORDS in fall.reason
    assert "helper" not in fall.reason


def test_of_two_that_nothing_clears_the_first_is_named() -> None:
    ready = replace(gang("ready"), ready_since=0.0)
    for after in range(int(DEFAULTS.stopped_state_s) + 1):
        now = STOPPED_AT + after
        stops = (STOPPED_AT, STOPPED_AT + 4)
        ready, _ = step(
            ready,
            now,
            token_at=STOPPED_AT - 1,
            names=(WORDS, "helper (pid 3) is stopped"),
            stopped_at=stops[: 1 + (after >= 4)],
        )
    fall = ready.record.fall
    assert fall is not None
    assert WORDS in fall.reason


def test_an_agent_that_tells_only_of_the_first_is_judged_by_it() -> None:
    ready = replace(gang("ready"), ready_since=0.0)
    for after in range(int(DEFAULTS.stopped_state_s) + 1):
        now = STOPPED_AT + after
        ready, _ = step(ready, now, token_at=STOPPED_AT - 1, each=False)
    assert ready.record.fall is not None

"""The load guard: drops that a load explains, and slopes that nothing explains."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.detect import thrash as thrash_of
from sparkd.detect.look import Look
from sparkd.detect.plunge import Plan, Plunge, expected_low, observe, pause_s
from sparkd.detect.thrash import Floor, Thrash
from sparkd.records.defaults import DEFAULTS, GIB
from sparkd.records.memory import Memory

LOADING = Floor(2 * GIB, "loading")
SERVING = Floor(4 * GIB, "serving")
UNKNOWN = Plan()


def seen(at: float, gib: float) -> Look:
    return Look(at, Memory(128 * GIB, int(gib * GIB), int(gib * GIB)))


def watch(
    series: Iterable[float], floor: Floor, plan: Plan = UNKNOWN, step_s: float = 1.0
) -> tuple[float | None, str]:
    """GiB when it was to be ended, and why."""
    plunge = Plunge()
    for number, gib in enumerate(series):
        plunge = observe(plunge, seen(number * step_s, gib), floor, plan)
        if plunge.reason is not None:
            return gib, plunge.reason
    return None, ""


@pytest.mark.parametrize("floor", [LOADING, SERVING])
def test_case_5_the_drop_after_loading_is_healthy(floor: Floor) -> None:
    series = (40, 39, 38, 31, 25, 21, *[20.5] * 30)
    assert watch(series, floor) == (None, "")
    assert watch(series, floor, Plan(at_loaded=38 * GIB)) == (None, "")


def test_a_bulk_allocation_that_the_plan_knows_is_healthy() -> None:
    """The KV cache: 14 GiB a second, down to where the plan says, which is near the floor."""
    plan = Plan(before=110 * GIB, uses=104 * GIB)
    series = [*[40.0] * 5, *(40 - 2.8 * step for step in range(1, 13)), *[6.2] * 10]
    assert watch(series, LOADING, plan, 0.2) == (None, "")
    assert watch(series, LOADING, UNKNOWN, 0.2)[0] is not None


@pytest.mark.parametrize("speed", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("floor", [LOADING, SERVING])
@pytest.mark.parametrize("plan", [UNKNOWN, Plan(before=30 * GIB, uses=6 * GIB)])
def test_a_steady_fall_is_ended_above_the_floor(floor: Floor, speed: float, plan: Plan) -> None:
    """Looks come as the watch takes them; half a second is left to end the rank."""
    plunge, thrash, at = Plunge(), Thrash(), 0.0
    while plunge.reason is None:
        look = seen(at, 30.0 - speed * at)
        thrash = thrash_of.observe(thrash, look, floor)
        plunge = observe(plunge, look, floor, plan)
        at += pause_s(thrash, plunge)
    above = look.memory.available - floor.bytes if look.memory else 0
    assert 0.5 * speed * GIB < above < DEFAULTS.plunge_s * speed * GIB
    assert f"falls by {speed:.1f} GiB a second" in plunge.reason
    assert f"({floor.phase})" in plunge.reason


def test_looks_are_rare_while_all_is_well() -> None:
    assert pause_s(Thrash(), Plunge()) == DEFAULTS.watch_s
    assert pause_s(Thrash(grade="watch"), Plunge()) == DEFAULTS.watch_fast_s


def test_one_large_allocation_is_a_step_and_no_slope() -> None:
    assert watch([9.0] * 20 + [6.0] + [5.0] * 50, SERVING, step_s=0.2) == (None, "")


def test_case_6_flat_at_six_gib() -> None:
    mib = [7488, 7463, 7281, 6761, 6018, 6010, 6005, *[6005] * 20]
    series = [one / 1024 for one in mib]
    assert watch(series, Floor(4 * GIB, "loading"), step_s=5.0) == (None, "")


def test_below_the_floor_only_what_is_left_counts() -> None:
    """A floor above what the machine has is a wrong profile; it ends nothing that stands still."""
    high = Floor(40 * GIB, "serving")
    wavering = [20.0, 19.8, 19.9, 19.7, 19.9] * 10
    assert watch(wavering, high, step_s=0.2) == (None, "")
    ended, reason = watch([20 - 0.2 * step for step in range(100)], high, step_s=0.2)
    assert ended is not None
    assert ended > 1
    assert "is at 1.0 GiB within" in reason


def test_a_fall_through_the_floor_between_two_looks_is_ended() -> None:
    assert watch([9.0, 9.0, 9.0, 3.5, 3.0, 2.5, 2.0], SERVING, step_s=0.2)[0] == 2.0


def test_a_fall_that_began_above_the_floor_is_ended_below_it_too() -> None:
    """An agent that came too late: the floor is behind, and memory goes on to fall."""
    high = Floor(17 * GIB, "loading")
    assert watch([18.0, 17.5, 17.3, 16.9, 16.5, 16.1], high, step_s=0.2)[0] == 16.5


def test_a_slope_with_pauses_is_a_slope() -> None:
    """A look in which little went away: the fall goes on, and so does the alarm."""
    series = [30.0, *(8.0 - gib for gib in (0, 0.4, 0.8, 1.2, 1.6, 1.62, 2.0, 2.4, 2.42, 2.8, 3.2))]
    ended = watch(series, SERVING, step_s=0.2)[0]
    assert ended is not None
    assert ended >= 5.0


def test_a_slow_fall_through_the_floor_is_no_plunge() -> None:
    """Case 6 as the watch sees it, with the floor of the report: 150 MiB a second through it, then flat."""
    series = [*(6.5 - 0.029 * step for step in range(20)), *[5.9] * 20]
    assert watch(series, Floor(6 * GIB, "loading"), step_s=0.2) == (None, "")


def test_unknown_memory_judges_nothing() -> None:
    plunge = observe(observe(Plunge(), seen(0.0, 9.0), SERVING, UNKNOWN), Look(1.0), SERVING, UNKNOWN)
    assert plunge == Plunge()


def test_what_a_plan_explains() -> None:
    assert expected_low(UNKNOWN, SERVING) is None
    assert expected_low(Plan(before=100 * GIB, uses=90 * GIB), SERVING) == 10 * GIB
    assert (
        expected_low(Plan(before=100 * GIB, uses=98 * GIB), SERVING) is None
    )  # a plan into the floor is no excuse
    assert expected_low(Plan(at_loaded=38 * GIB), SERVING) == 19 * GIB


@given(st.lists(st.floats(0.0, 0.3), max_size=100), st.floats(8.0, 30.0))
def test_slow_falls_are_left_to_the_floor(steps: list[float], start: float) -> None:
    """Up to 1.5 GiB a second as long as more than 3 GiB are left above the floor."""
    series = [start]
    for step in steps:
        if series[-1] - step < SERVING.bytes / GIB + 1.5 * DEFAULTS.plunge_s:
            break
        series.append(series[-1] - step)
    assert watch(series, SERVING, step_s=0.2) == (None, "")

"""Kind first, time second."""

from dataclasses import dataclass

import pytest

from sparkd.diagnosis.choice import COLLECTIVE, DEATH, ERROR, EXIT, Moment, choose


@dataclass(frozen=True)
class Seen:
    what: str
    moment: Moment


def seen(what: str, kind: int, at: float | None, error_s: float = 0.0) -> Seen:
    return Seen(what, Moment(kind, at, error_s))


def names(*candidates: Seen) -> list[str]:
    chosen = [one.what for one in choose(candidates, lambda one: one.moment)]
    again = [one.what for one in choose(candidates[::-1], lambda one: one.moment)]
    assert chosen[:1] == again[:1], "the order in which things are heard of must not decide"
    return chosen


def test_the_victim_is_named_although_the_survivor_cried_out_25_ms_before() -> None:
    survivor = seen("survivor's NCCL error", COLLECTIVE, 10.000, 0.002)
    launcher = seen("victim's launcher line", DEATH, 10.025, 0.002)
    assert names(survivor, launcher) == ["victim's launcher line"]


@pytest.mark.parametrize(("apart_s", "error_s"), [(4.9, 0.0), (6.9, 1.0), (0.0, 0.0)])
def test_a_higher_kind_within_five_seconds_and_the_clocks_errors_is_the_cause(
    apart_s: float, error_s: float
) -> None:
    assert names(
        seen("collective", COLLECTIVE, 100.0, error_s), seen("death", DEATH, 100.0 + apart_s, error_s)
    ) == ["death"]


def test_one_that_comes_later_than_that_is_a_consequence() -> None:
    assert names(seen("error", ERROR, 100.0), seen("killed by its peers", DEATH, 105.2)) == ["error"]


def test_of_one_kind_the_first_is_the_cause() -> None:
    assert names(seen("second", DEATH, 10.5), seen("first", DEATH, 10.2)) == ["first"]


def test_two_that_are_closer_than_the_clocks_tell_are_both_named() -> None:
    assert names(seen("a", DEATH, 10.00, 0.03), seen("b", DEATH, 10.05, 0.03)) == ["a", "b"]


def test_a_chain_is_followed_to_its_highest_kind() -> None:
    assert names(seen("timeout", COLLECTIVE, 0.0), seen("exit", EXIT, 4.0), seen("death", DEATH, 8.0)) == [
        "death"
    ]


def test_what_has_no_time_is_judged_by_its_kind() -> None:
    assert names(seen("collective", COLLECTIVE, 5.0), seen("death", DEATH, None)) == ["death"]


def test_nothing_has_no_cause() -> None:
    assert choose((), lambda one: one) == ()

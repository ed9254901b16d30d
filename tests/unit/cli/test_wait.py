from collections.abc import Callable

import pytest

from sparkd.cli.wait import Patience
from sparkd.clock import Instant
from sparkd.errors import CoordinatorStarting, CoordinatorUnreachable, NotFound, TimedOut
from sparkd.records.defaults import DEFAULTS


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> Instant:
        return Instant(self.now_s, self.now_s)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def patience(time: Time, said: list[str]) -> Patience:
    return Patience(said.append, clock=time, sleep=time.sleep)


def failing(*errors: Exception) -> Callable[[], str]:
    left = list(errors)

    def question() -> str:
        if left:
            raise left.pop(0)
        return "here"

    return question


def test_a_coordinator_that_comes_back_is_waited_for_and_it_is_said_once(
    patience: Patience, said: list[str]
) -> None:
    gone = CoordinatorUnreachable("no coordinator at X")
    assert patience.ask(failing(gone, gone, CoordinatorStarting("starting"))) == "here"
    assert said == ["no coordinator at X; asking again for 30 s", "the coordinator answers again"]


def test_a_coordinator_that_stays_away_is_an_error_after_the_outage(patience: Patience, time: Time) -> None:
    with pytest.raises(CoordinatorUnreachable):
        patience.ask(failing(*[CoordinatorUnreachable("gone")] * 1000))
    assert time.now_s == pytest.approx(DEFAULTS.client_outage_s, abs=2 * DEFAULTS.client_poll_s)


def test_each_outage_has_its_own_time(patience: Patience, time: Time) -> None:
    half = int(0.7 * DEFAULTS.client_outage_s / DEFAULTS.client_poll_s)
    for _ in range(3):
        assert patience.ask(failing(*[CoordinatorUnreachable("gone")] * half)) == "here"
    assert time.now_s > DEFAULTS.client_outage_s


def test_a_first_question_waits_for_a_start_but_not_for_a_coordinator_that_is_not_there(
    patience: Patience, time: Time
) -> None:
    assert patience.ask(failing(CoordinatorStarting("starting")), only_starting=True) == "here"
    before = time.now_s
    with pytest.raises(CoordinatorUnreachable):
        patience.ask(failing(CoordinatorUnreachable("gone")), only_starting=True)
    assert time.now_s == before


def test_other_errors_are_not_waited_out(patience: Patience, said: list[str]) -> None:
    with pytest.raises(NotFound):
        patience.ask(failing(NotFound("no such")))
    assert said == []


def test_a_watch_ends_with_its_timeout(patience: Patience, time: Time) -> None:
    with pytest.raises(TimedOut):
        list(patience.watch(lambda: "still", 3.0))
    assert time.now_s == pytest.approx(3.0, abs=2 * DEFAULTS.client_poll_s)

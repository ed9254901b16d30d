"""A rank's life by table: what happened, what state that makes, and from when on it is killed."""

from dataclasses import replace

import pytest

from sparkd.records.defaults import DEFAULTS
from sparkd_agent import life
from sparkd_agent.life import Life

NEW = Life("starting", since=0.0)
RUNNING = life.began(NEW, 1.0)
FALLEN = life.essential_ended(RUNNING, 10.0, "worker ended", DEFAULTS)
STOPPING = life.end_asked(RUNNING, 10.0, 5.0, "down")


def test_a_fall_leaves_time_for_last_words_and_then_kills() -> None:
    assert (FALLEN.state, FALLEN.fell, FALLEN.since) == ("fallen", "worker ended", 10.0)
    assert FALLEN.kill_at == 10.0 + DEFAULTS.last_words_s


@pytest.mark.parametrize("start", [NEW, RUNNING])
def test_any_unasked_end_is_a_fall(start: Life) -> None:
    assert life.leader_ended(start, 2.0, "leader ended", DEFAULTS).state == "fallen"


def test_the_first_end_is_the_reason() -> None:
    assert life.leader_ended(FALLEN, 10.1, "leader ended too", DEFAULTS) == FALLEN


@pytest.mark.parametrize(
    ("after", "kill_at"),
    [
        (life.last_words_written(FALLEN, 10.1), 10.1),
        (life.last_words_written(FALLEN, 99.0), FALLEN.kill_at),
        (life.last_words_written(RUNNING, 10.1), None),
        (life.kill_asked(FALLEN, 10.2, "peer fell"), 10.2),
        (life.kill_asked(RUNNING, 10.2, "peer fell"), 10.2),
        (life.kill_asked(STOPPING, 11.0, "memory"), 11.0),
        (STOPPING, 15.0),
        (life.end_asked(STOPPING, 11.0, 60.0, "again"), 15.0),
        (life.end_asked(STOPPING, 11.0, 1.0, "hurry"), 12.0),
        (life.end_asked(FALLEN, 10.1, 60.0, "down"), FALLEN.kill_at),
        (life.leader_ended(STOPPING, 11.0, "obeyed", DEFAULTS), 11.0),
        (life.essential_ended(STOPPING, 11.0, "worker went first", DEFAULTS), 15.0),
    ],
)
def test_when_it_is_killed(after: Life, kill_at: float | None) -> None:
    assert after.kill_at == kill_at


def test_an_end_that_was_asked_for_is_no_fall() -> None:
    ended = life.leader_ended(STOPPING, 11.0, "leader ended", DEFAULTS)
    assert (ended.state, ended.fell, ended.reason) == ("stopping", None, "down")


def test_a_fall_stays_a_fall_until_nothing_is_left() -> None:
    asked = life.kill_asked(FALLEN, 10.1, "down")
    assert (asked.state, asked.fell) == ("fallen", "worker ended")
    gone = life.nothing_left(life.killed(asked, 10.2, (), DEFAULTS), 10.3)
    assert (gone.state, gone.fell, gone.over) == ("gone", "worker ended", True)


@pytest.mark.parametrize(
    "event",
    [
        lambda gone: life.kill_asked(gone, 99.0, "late"),
        lambda gone: life.end_asked(gone, 99.0, 1.0, "late"),
        lambda gone: life.leader_ended(gone, 99.0, "late", DEFAULTS),
        lambda gone: life.last_words_written(gone, 99.0),
        lambda gone: life.nothing_left(gone, 99.0, ("x",)),
        lambda gone: life.began(gone, 99.0),
    ],
)
def test_gone_is_the_end(event) -> None:  # noqa: ANN001 - one of the events above
    gone = life.nothing_left(FALLEN, 11.0)
    assert event(gone) == gone


def test_the_proof_time_counts_from_the_first_kill() -> None:
    first = life.killed(FALLEN, 20.0, (), DEFAULTS)
    late = life.killed(first, 20.0 + DEFAULTS.kill_proof_s, ("pid 812 state D",), DEFAULTS)
    just_before = life.killed(first, 20.0 + DEFAULTS.kill_proof_s - 0.01, (), DEFAULTS)
    assert (first.state, just_before.state) == ("fallen", "fallen")
    assert (late.state, late.remains) == ("unkillable", ("pid 812 state D",))
    again = life.killed(late, 99.0, ("pid 812 state D",), DEFAULTS)
    assert again == replace(late)
    assert life.nothing_left(again, 100.0).state == "gone"

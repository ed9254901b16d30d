"""Case 14: wall clocks jump, on either side and in the middle of a lease; monotonic clocks decide."""

from collections.abc import Callable

import pytest

from sparkd.clock import Instant
from sparkd.coordinator.view import node_statuses
from sparkd.fleet import machine
from sparkd.fleet.nodes import Node
from sparkd.fleet.state import Commands, Fleet
from sparkd.records.defaults import DEFAULTS
from sparkd.records.document import Revision
from sparkd.records.report import Caller, Hello, NodeFacts, Report

HOUR = 3600.0
START = 1_000_000.0


def life(
    coordinator: Callable[[int], float], node: Callable[[int], float], beats: int = 40
) -> tuple[Fleet, list[Commands]]:
    """A minute of beats; the two clocks say what the functions give for each, above the true time."""
    fleet = Fleet("h", 1, "i", 0.0, enrolled=frozenset({"n"}), nodes={"n": Node("n", "spark-1")})
    told: list[Commands] = []

    def now(beat: int) -> Instant:
        return Instant(mono=float(beat), wall=START + beat + coordinator(beat))

    hello = Hello(
        Caller("n", "b", "r", 1), NodeFacts("n", "spark-1", "10.0.0.1", "10.1.0.1"), "1", holder="h"
    )
    fleet, _, _ = machine.hello(fleet, hello, now(0))
    for beat in range(1, beats):
        wall = START + beat + node(beat) - 0.01
        report = Report(Caller("n", "b", "r", beat + 1), wall, float(beat) + 99.0, Revision(1, 0), rtt_s=0.02)
        fleet, commands, _ = machine.report(fleet, report, now(beat))
        told.append(commands)
        fleet, commands = machine.tick(fleet, now(beat))
        told.append(commands)
    return fleet, told


def steady(_: int) -> float:
    return 0.0


def jump(by: float) -> Callable[[int], float]:
    """In the middle of a lease, and for the rest of the time."""
    return lambda beat: by if beat > 20 else 0.0


@pytest.mark.parametrize("by", [HOUR, -HOUR])
@pytest.mark.parametrize("whose", ["coordinator", "node"])
def test_a_clock_that_jumps_loses_no_node(whose: str, by: float) -> None:
    clocks = {"coordinator": steady, "node": steady, whose: jump(by)}
    fleet, told = life(**clocks)
    assert fleet.nodes["n"].state == "alive"
    assert not any(told), "no event: nothing has happened"
    expected = by if whose == "coordinator" else -by
    assert fleet.nodes["n"].clock_offset_s == pytest.approx(expected, abs=0.1), (
        "ends are told in our time again"
    )


@pytest.mark.parametrize(("by", "word"), [(HOUR, "ahead"), (-HOUR, "behind")])
def test_a_clock_that_is_off_is_a_warning_that_says_what_to_do(by: float, word: str) -> None:
    fleet, _ = life(steady, lambda _: by)
    (status,) = node_statuses(fleet)
    (verdict,) = status.verdicts
    assert (verdict.id, verdict.severity, status.state) == ("CLOCK_OFF", "warn", "alive")
    assert f"3600 s {word}" in verdict.title
    assert verdict.remedy


def test_a_small_difference_is_not_worth_a_word() -> None:
    fleet, _ = life(steady, lambda _: DEFAULTS.clock_warn_s / 2)
    assert node_statuses(fleet)[0].verdicts == ()


def test_one_late_report_is_no_clock_that_was_set() -> None:
    """It was under way for as long as it may be."""
    fleet, _ = life(steady, lambda beat: -DEFAULTS.agent_request_timeout_s if beat == 30 else 0.0)
    assert fleet.nodes["n"].clock_offset_s == pytest.approx(0.0, abs=0.1)

"""The agent on a node that runs short of memory: real processes, real thrash, and a floor that counts."""

import os
from pathlib import Path

import pytest

from sparkd.records.defaults import DEFAULTS, GIB
from tests.bed.pressure import LEAST_BYTES, TooBusy, available, eat, memory_group, thrash

pytestmark = pytest.mark.timeout(180)
STATUS_S = 1.0
ROOM = LEAST_BYTES + 6 * GIB


@pytest.mark.skipif(available() < ROOM, reason="needs 12 GiB that nobody else uses")
def test_a_rank_that_eats_a_gib_a_second_is_ended_above_the_floor(tmp_path: Path) -> None:
    try:
        story, floor = eat(tmp_path, GIB)
    except TooBusy as busy:
        pytest.skip(f"this machine is too busy to eat so fast: {busy}")
    assert story.condemned.cause == "MEMORY_PLUNGE", story
    assert f"floor {floor / GIB:.1f} GiB (launching)" in story.condemned.reason
    assert story.lowest > floor, story
    assert max(story.answers) < STATUS_S, story
    assert "MEMORY_PLUNGE" in story.events["memory"]


def test_a_rank_that_thrashes_is_ended_and_one_that_does_not_is_left_alone(tmp_path: Path) -> None:
    """The floor is above what the machine has: the trouble alone makes the difference."""
    try:
        with memory_group(f"sparkd-test-{os.getpid()}") as group:
            story = thrash(tmp_path, group)
    except PermissionError:
        pytest.skip("no memory control group can be made here")
    assert story.condemned.cause == "MEMORY_THRASH", story
    assert "are read again (refaults)" in story.condemned.reason or "PSI full" in story.condemned.reason
    assert "(launching)" in story.condemned.reason
    # Three seconds of trouble: five are promised on an idle machine, and are what it takes on a busy one.
    assert story.known < 4 * DEFAULTS.watch_window_s, story
    assert max(story.answers) < STATUS_S, story
    assert {"shed", "memory"} <= story.events.keys()

"""Stored seeds that find the planted bugs: the search is only worth something while it can find these."""

import pytest

from tests.sim.planted import PLANTED, Planted, find
from tests.sim.schedule import play

STORED = {
    "spent-name": 7,
    "unknown-is-not-lost": 340,
    "undelivered-pulse": 340,
    "tombstones": 148,
    "proof-after-restart": 296,
    "seq-over-state": 3,
    "old-database": 2,
    "probe-blocks": 52,
    "probe-stays": 25,
    "budget": 34,
    "holder": 13,
}


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_the_stored_seed_finds_the_bug_and_nothing_without_it(bug: Planted) -> None:
    seed = STORED[bug.name]
    assert play(seed).violations == []
    found = find(bug, range(seed, seed + 1))
    assert found is not None, f"{bug.name} is not found any more: python -m tests.sim.planted"

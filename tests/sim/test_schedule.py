"""A bounded part of the search: every seed of it must hold all invariants and come to rest."""

import pytest

from tests.sim.schedule import play

CHUNK = 250
FOUND = (53824, 68695, 95738, 111512, 115787, 135723)
"""What searches over 100,000 seeds and more have found."""


@pytest.mark.parametrize("first", range(0, 8 * CHUNK, CHUNK))
def test_no_seed_violates_an_invariant(first: int) -> None:
    for seed in range(first, first + CHUNK):
        world = play(seed)
        assert not world.violations, f"{world.timeline()}\nreplay: python -m tests.sim.schedule {seed}"


@pytest.mark.parametrize("seed", FOUND)
def test_what_long_searches_found_stays_found(seed: int) -> None:
    world = play(seed)
    assert not world.violations, f"{world.timeline()}\nreplay: python -m tests.sim.schedule {seed}"

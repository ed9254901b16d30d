"""The chaos run as a test; `make soak` runs ten times as much."""

import pytest

from tests.chaos.run import chaos


@pytest.mark.timeout(600)
def test_fifty_rounds() -> None:
    assert "50 rounds" in chaos(rounds=50, seed=1)

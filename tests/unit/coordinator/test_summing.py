"""In which order nodes are tried."""

from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest

from sparkd.coordinator.summing import _rounds


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
def test_each_pair_once_and_no_node_twice_at_a_time(count: int) -> None:
    nodes: list[Any] = [SimpleNamespace(name=number) for number in range(count)]
    rounds = _rounds(nodes)
    pairs = [tuple(one.name for one in group) for groups in rounds for group in groups]
    assert sorted(pairs) == sorted(combinations(range(count), 2))
    for groups in rounds:
        names = [one.name for group in groups for one in group]  # type: ignore[attr-defined]
        assert len(names) == len(set(names))

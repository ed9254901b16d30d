"""Whether a node's memory is back after a rank has ended, as reported (cases 7 and 8)."""

import pytest

from sparkd.fleet.nodes import Node
from sparkd.gang.memory import returned
from sparkd.records.defaults import GIB
from sparkd.records.memory import Memory
from sparkd.records.rank import MemoryNeed
from sparkd.records.report import Sample

NEED = MemoryNeed(need_bytes=100 * GIB, margin_bytes=3 * GIB)
TOTAL = int(121.7 * GIB)


def node(available: float | None, baseline: float | None = 117.7) -> Node:
    memory = None if available is None else Memory(TOTAL, int(available * GIB), int(available * GIB))
    before = None if baseline is None else int(baseline * GIB)
    return Node("a", "a", sample=Sample(memory), baseline_bytes=before)


@pytest.mark.parametrize(
    ("available", "baseline", "back", "enough"),
    [
        pytest.param(84.0, 117.7, False, False, id="case 7: it stays at 84 GiB"),
        pytest.param(109.5, 117.7, False, True, id="case 8: less after each try, and enough this time"),
        pytest.param(115.0, 117.7, True, True, id="all of it but the margin"),
        pytest.param(104.0, None, True, True, id="an adopted rank: what the plan needs is there"),
        pytest.param(84.0, None, False, False, id="an adopted rank: it is not"),
        pytest.param(None, 117.7, True, True, id="unknown holds nobody back"),
    ],
)
def test_returned(available: float | None, baseline: float | None, back: bool, enough: bool) -> None:
    judged = returned(node(available, baseline), NEED)
    assert (judged.back, judged.enough) == (back, enough)
    assert bool(judged.short) is not back


def test_the_reason_names_both_numbers() -> None:
    assert returned(node(84.0), NEED).short == (
        "84.0 GiB available on a, before the rank it had, less the margin, 114.7 GiB"
    )

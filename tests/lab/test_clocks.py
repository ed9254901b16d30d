"""Wall clocks that are wrong, the agent's or the coordinator's (fault case 14): no rank notices."""

from collections.abc import Callable

import pytest

from tests.lab.cluster import AGENT_UNIT, COORDINATOR_UNIT, Cluster
from tests.lab.faults import clock_off
from tests.lab.node import until
from tests.lab.traffic import Traffic

Up = Callable[..., None]
HOUR = 3600.0
YEAR = 365 * 86_400.0


def clock_verdict(four: Cluster, name: str) -> str:
    status = four.node_status(name)
    return next((v.title for v in status.verdicts if v.id == "CLOCK_OFF"), "") if status else ""


@pytest.mark.parametrize("off", [HOUR, -HOUR], ids=["ahead", "behind"])
@pytest.mark.parametrize("whose", ["agent", "coordinator"])
def test_an_hour_off(four: Cluster, name: str, up: Up, whose: str, off: float) -> None:
    up("--nodes", "a,b")
    b = four["b"]
    ranks = four.leaders(four["a"]) | four.leaders(b)
    node, unit = (b, AGENT_UNIT) if whose == "agent" else (four.head, COORDINATOR_UNIT)
    is_ahead = (off > 0) == (whose == "agent")
    with Traffic(four, name) as traffic:
        with clock_off(node, unit, off):
            said = until(lambda: clock_verdict(four, "b"), "a verdict on b's clock")
            assert ("ahead" if is_ahead else "behind") in said
            four.in_contact()
            four.until(name, "ready")
            traffic.flows()
        four.in_contact()
        until(lambda: not clock_verdict(four, "b"), "the verdict to be gone")
        status = four.until(name, "ready")
    assert not traffic.lost
    assert four.leaders(four["a"]) | four.leaders(b) == ranks
    assert (status.generation, status.falls) == (1, 0)


def test_a_clock_beyond_every_certificate_is_named_on_both_sides(four: Cluster, name: str, up: Up) -> None:
    up("--nodes", "a,b")
    b = four["b"]
    ranks = four.leaders(four["a"]) | four.leaders(b)
    with Traffic(four, name) as traffic:
        with clock_off(b, AGENT_UNIT, 2 * YEAR):
            until(lambda: "clock of b is off by" in four.agent(b)["coordinator"], "the agent to know why")
            until(
                lambda: "clock of b is off by" in four.sparkd("nodes", "list"), "the coordinator to know why"
            )
            traffic.flows()
        four.in_contact()
        status = four.until(name, "ready")
    assert not traffic.lost
    assert four.leaders(four["a"]) | four.leaders(b) == ranks
    assert (status.generation, status.falls) == (1, 0)

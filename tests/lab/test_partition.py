"""Networks that fail in part (fault cases 10 to 13)."""

import time
from collections.abc import Callable

import pytest

from tests.lab.cluster import Cluster
from tests.lab.faults import cut, parted, pulled
from tests.lab.network import Cable
from tests.lab.node import until
from tests.lab.traffic import Traffic

Up = Callable[..., None]
Record = Callable[[str, object], None]
QUICK = ("--set", "restart.backoff_s=0.01")
PARTITION_S = 60.0


def stays(four: Cluster, name: str, ranks: object, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert four.leaders(four["a"]) | four.leaders(four["b"]) == ranks
        time.sleep(0.5)


@pytest.mark.parametrize("which", ["a", "b"])
def test_a_node_and_its_coordinator_apart(four: Cluster, name: str, up: Up, which: str) -> None:
    """Fault case 10, rank 0's node and a follower's: serving goes on, and healing restarts nothing."""
    up("--nodes", "a,b", *QUICK)
    ranks = four.leaders(four["a"]) | four.leaders(four["b"])
    with Traffic(four, name) as traffic:
        with parted(four.lab.room, four.head.mgmt, four[which].mgmt):
            stays(four, name, ranks, PARTITION_S)
            seen = four.node_status(which)
            assert seen is not None
            assert seen.state != "alive"
        four.in_contact()
        status = four.until(name, "ready")
        traffic.flows()
    assert not traffic.lost
    assert four.leaders(four["a"]) | four.leaders(four["b"]) == ranks
    assert (status.generation, status.falls) == (1, 0)


def test_a_node_cut_off_whole_is_replaced_and_loses_its_old_rank_when_it_is_back(
    four: Cluster, name: str, up: Up, record_property: Record
) -> None:
    """Fault case 11."""
    up(*QUICK)
    b = four["b"]
    with pulled(four.lab.network, b.fabric):
        with pulled(four.lab.network, b.mgmt):
            status = four.until(name, "ready", generation=2)
            assert [rank.node for rank in status.ranks] == ["a", "c"]
            assert list(four.leaders(b)) == [f"sparkd-{name}-g1-r1"]
            serving = four.leaders(four["a"]) | four.leaders(four["c"])
        # Without the fabric: nothing that its dead peers still send may do the coordinator's work.
        healed = time.monotonic()
        until(lambda: not four.leaders(b), "the old rank to be ended", 20)
        record_property(
            "the old rank was gone", f"{time.monotonic() - healed:.2f} s after contact could be had"
        )
    four.in_contact("b")
    assert four.leaders(four["a"]) | four.leaders(four["c"]) == serving
    assert four.client.deployment(name).generation == 2
    ready = [event.generation or 0 for event in four.events(name) if event.to == "ready"]
    assert ready == sorted(ready)


@pytest.mark.parametrize("deaf", ["agent", "coordinator"])
def test_half_a_connection(four: Cluster, name: str, up: Up, deaf: str, record_property: Record) -> None:
    """Fault case 12: who is not heard, or hears nothing, is without contact, and its ranks serve on."""
    up("--nodes", "a,b", *QUICK)
    b = four["b"]
    ranks = four.leaders(four["a"]) | four.leaders(b)
    ends: tuple[Cable, Cable] = (four.head.mgmt, b.mgmt)
    source, to = ends if deaf == "agent" else ends[::-1]
    with Traffic(four, name) as traffic:
        with cut(four.lab.room, source, to):
            begun = time.monotonic()
            until(lambda: (s := four.node_status("b")) and s.state != "alive", "b to be missed", 20)
            until(
                lambda: not four.agent(b)["coordinator"].startswith("connected"),
                "the agent to know of it",
                30,
            )
            record_property("both sides knew after", f"{time.monotonic() - begun:.1f} s")
            stays(four, name, ranks, 15)
        four.in_contact()
        status = four.until(name, "ready")
        traffic.flows()
    assert not traffic.lost
    assert four.leaders(four["a"]) | four.leaders(b) == ranks
    assert (status.generation, status.falls) == (1, 0)


def test_a_fabric_cable_that_is_pulled_ends_the_gang_and_back_in_it_returns(
    four: Cluster, name: str, up: Up, record_property: Record
) -> None:
    """No process dies and no connection breaks: only the pulse can tell that nothing computes any more."""
    up("--nodes", "a,b", *QUICK)
    old = four.leaders(four["a"]) | four.leaders(four["b"])
    with pulled(four.lab.network, four["b"].fabric):
        begun = time.monotonic()
        until(lambda: (s := four.status(name)) and s.phase != "ready", "the wedge to be known", 120)
        record_property("known after", f"{time.monotonic() - begun:.1f} s")
        until(lambda: not set(old.values()) & set(four.leaders(four["b"]).values()), "the old ranks' end", 20)
    (incident,) = four.client.incidents(name)
    assert "frozen" in incident["fall"]["reason"]
    four.until(name, "ready", generation=2)

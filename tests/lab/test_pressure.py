"""A machine that thrashes under a gang. All nodes of the lab share its memory, so all of them see it."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkd.records.defaults import GIB
from tests.bed.pressure import available, thrashing
from tests.lab.cluster import Cluster
from tests.lab.node import until

Up = Callable[..., None]
Record = Callable[[str, object], None]


@pytest.mark.timeout(400)
def test_a_gang_is_shed_then_ended_on_all_nodes_and_tried_once_more(
    four: Cluster, name: str, up: Up, tmp_path: Path, record_property: Record
) -> None:
    """A floor above what there is makes no alarm: only with trouble beside it the gang ends."""
    floor = (available() + 8 * GIB) // GIB
    up("--nodes", "a,b", "--set", f"memory.floors_gib={{loading: {floor}, serving: {floor}}}")
    until(lambda: (status := four.status(name)) is not None and not status.admit, "it to be shed")
    end = time.monotonic() + 8
    while time.monotonic() < end:
        status = four.client.deployment(name)
        assert (status.phase, status.generation) == ("ready", 1)
        time.sleep(0.5)
    node = four.node_status("a")
    assert node is not None
    assert "MEMORY_LOW" in [verdict.id for verdict in node.verdicts]

    with thrashing(tmp_path):
        begun = time.monotonic()
        until(lambda: (status := four.status(name)) and status.phase != "ready", "it to be known", 30)
        record_property("thrash known after", f"{time.monotonic() - begun:.1f} s")
        status = four.until(name, "failed")
    record_property("failed after", f"{time.monotonic() - begun:.1f} s")
    fall = status.last_fall
    assert fall is not None
    assert fall.cause == "MEMORY_THRASH", fall
    assert f"floor {floor}.0 GiB" in fall.reason
    assert four.client.incidents(name)[0]["explanation"]["cause"]["id"] == "MEMORY_THRASH"
    assert "a second fall for memory" in status.reason
    assert not any(four.leaders(one) for one in four.nodes)
    kinds = {event.kind for event in four.client.recent_events(limit=200)}
    assert {"shed", "memory"} <= kinds

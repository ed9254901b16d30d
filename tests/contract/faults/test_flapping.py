"""Case 33: a rank that dies again and again: growing pauses, then an end, then nothing."""

import time

from tests.bed.cluster import Cluster
from tests.bed.stand_in import configure

BASE_S = 0.4
FALLS = 4


def test_pauses_grow_and_it_ends(bed: Cluster, name: str) -> None:
    configure(bed.engine, EXIT="serving:1@1")
    bed.client.up(name, bed.intent(f"restart.budget={FALLS - 1}", f"restart.backoff_s={BASE_S}"))
    failed = bed.until(name, "failed")
    assert (failed.generation, failed.falls) == (FALLS, FALLS)
    assert f"fell {FALLS} times, budget {FALLS - 1}" in failed.reason
    events = bed.client.recent_events(limit=1000, deployment=name)
    falls = [e.at for e in events if e.kind == "fall" and "fell first" not in e.reason]
    starts = [e.at for e in events if e.to == "launching"]
    pauses = [start - fall for fall, start in zip(falls, starts[1:], strict=False)]
    assert len(pauses) == FALLS - 1
    for pause, base in zip(pauses, (BASE_S, 2 * BASE_S, 4 * BASE_S), strict=True):
        assert base <= pause < 10 * base
    time.sleep(BASE_S * 2 ** (FALLS - 1) * 1.25 + 0.5)  # the pause that would have been next, and more
    assert bed.client.deployment(name).generation == FALLS
    assert not bed.sightings()

"""Fault case 13: a bad network is not a dead node.

Ten minutes that are spent waiting: `make lab` gives this file a worker of its own.
"""

import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests.lab.cluster import cluster
from tests.lab.faults import impaired
from tests.lab.traffic import Traffic

WEATHER_S = 600.0
LOSS = 0.05
DELAY_S = 0.2
PATIENT_S = 120.0
"""For a completion: its client is behind the same cable, and TCP doubles its pause after each loss, so that
five in a row take half a minute. Once in ten minutes of it one took longer than 30 s.
"""


@pytest.mark.timeout(WEATHER_S + 300 + PATIENT_S)
def test_loss_and_delay_kill_nobody(
    tmp_path_factory: pytest.TempPathFactory, record_property: Callable[[str, object], None]
) -> None:
    """The management cables of both nodes: 5 % of the frames lost and 200 ms late, each way."""
    with cluster(tmp_path_factory.mktemp("weather"), ("a", "b")) as two:
        two.sparkd("up", "tiny", "--nodes", "a,b")
        a, b = two["a"], two["b"]
        ranks = two.leaders(a) | two.leaders(b)
        begun = time.time()
        with (
            Traffic(two, "tiny", PATIENT_S) as traffic,
            impaired(two.lab.room, a.mgmt, loss=LOSS, delay_s=DELAY_S),
            impaired(two.lab.room, b.mgmt, loss=LOSS, delay_s=DELAY_S, seed=2),
        ):
            while time.time() < begun + WEATHER_S:
                time.sleep(5)
                status = two.client.deployment("tiny")
                assert (status.generation, status.falls) == (1, 0), two.told()
                assert two.leaders(a) | two.leaders(b) == ranks
        states = [event.to for event in two.events() if event.kind == "node" and event.at > begun]
        record_property("states of the nodes", dict(Counter(states)))
        record_property("completions", f"{traffic.answered}, the longest {traffic.longest_s:.1f} s")
        assert not {"silent", "lost"} & set(states), two.told()
        assert not traffic.lost
        assert traffic.answered > 100

"""Two real vLLM ranks on two machines, over gloo on the fabric, under the systemd runtime."""

import time
from collections.abc import Callable, Iterator

import pytest

from tests.lab.cluster import AGENT_UNIT, COORDINATOR_UNIT, Cluster, cluster
from tests.lab.node import until
from tests.lab.traffic import Traffic

BOOT_S = 300

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2 * BOOT_S)]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("vllm"), ("a", "b", "c"), engine="vllm") as made:
        yield made


def test_up_serves_over_restarts_and_returns_after_a_power_cut(
    three: Cluster, record_property: Callable[[str, object], None]
) -> None:
    """One boot for all of it: a boot takes most of a minute on two cores."""
    three.sparkd("up", "tiny", timeout_s=BOOT_S)
    a, b = three["a"], three["b"]
    ranks = three.leaders(a) | three.leaders(b)
    assert len(ranks) == 2
    units = b.run("systemctl", "list-units", "--plain", "--no-legend", "sparkd-tiny-*").stdout
    assert "sparkd-tiny-g1-r1.service" in units
    told = three.sparkd("logs", "tiny", "--rank", "0")
    assert f"tcp://{a.fabric.address}:" in told

    with Traffic(three, "tiny") as traffic:
        for node, unit in ((three.head, COORDINATOR_UNIT), (a, AGENT_UNIT), (b, AGENT_UNIT)):
            node.run("systemctl", "restart", unit)
            traffic.flows()
        three.in_contact()
        three.until("tiny", "ready")
        traffic.flows()
    assert not traffic.lost
    assert three.leaders(a) | three.leaders(b) == ranks

    begun = time.monotonic()
    b.power_off()
    until(lambda: not three.leaders(a).get("sparkd-tiny-g1-r0"), "rank 0 to be ended", 60)
    record_property("rank 0 ended after a power cut of its peer", f"{time.monotonic() - begun:.1f} s")
    status = three.until("tiny", "ready", generation=2, timeout_s=BOOT_S)
    assert [rank.node for rank in status.ranks] == ["a", "c"]
    record_property("completions", traffic.answered)
    three.sparkd("down", "tiny")
    for node in (a, three["c"]):
        assert not three.leaders(node)

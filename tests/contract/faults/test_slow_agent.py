"""Case 21: an agent that stands still for seconds and is not dead; and one that is slow all the time."""

import signal
import time

from sparkd.records.event import Event
from tests.bed.cluster import Cluster, until


def node_events(bed: Cluster, node: str, after: float) -> list[Event]:
    events = bed.client.recent_events(limit=1000)
    return [e for e in events if e.kind == "node" and e.node == node and e.at >= after]


def test_three_seconds_are_suspect_and_nothing_more(bed: Cluster, name: str) -> None:
    """The models serve on, no generation is spent, and the other nodes do not notice."""
    bed.client.up(name, bed.intent())
    before = bed.until(name, "ready")
    begun, asked = time.time(), []
    bed.agents[1].signal(signal.SIGSTOP)
    try:
        end = time.monotonic() + 3.0
        while time.monotonic() < end:
            at = time.monotonic()
            status = bed.client.status()
            asked.append(time.monotonic() - at)
            time.sleep(0.1)
            others = [n.state for n in status.nodes if n.name != "local-2"]
            assert others == ["alive", "alive"]
    finally:
        bed.agents[1].signal(signal.SIGCONT)
    until(bed.in_contact, "the agent to be in contact again")
    states = [e.to for e in node_events(bed, "local-2", begun)]
    assert states[:1] == ["suspect"]
    assert "silent" not in states
    assert sorted(asked)[len(asked) // 2] < 1.0, "nobody waits for the slow one"
    after = bed.client.deployment(name)
    assert (after.phase, after.generation, after.falls) == ("ready", before.generation, 0)
    assert [r.pid for r in after.ranks] == [r.pid for r in before.ranks]


def test_an_agent_whose_disk_takes_a_second_for_everything(bed: Cluster, name: str) -> None:
    agent = bed.agents[0]
    agent.kill()
    agent.start(
        "agent.2-fences-saved:sleep=1000,agent.4-intent-committed:sleep=1000,agent.15-posted:sleep=1000"
    )
    begun = time.time()
    bed.client.up(name, bed.intent())
    ready = bed.until(name, "ready", "failed", "recovering")
    assert (ready.phase, ready.generation) == ("ready", 1), ready.reason
    assert "silent" not in [e.to for e in node_events(bed, "local-1", begun)]
    agent.kill()

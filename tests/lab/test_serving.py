"""What goes on around a gang that serves: none of it may cost a completion or a rank."""

import signal
from collections.abc import Callable

import pytest

from tests.lab import software
from tests.lab.cluster import AGENT_UNIT, COORDINATOR_UNIT, Cluster
from tests.lab.faults import kill
from tests.lab.node import Node, until
from tests.lab.traffic import Traffic

Up = Callable[..., None]


def main_pid(node: Node, unit: str) -> int:
    return int(node.run("systemctl", "show", "--value", "-p", "MainPID", unit).stdout)


def test_up_on_named_nodes(four: Cluster, name: str, up: Up) -> None:
    up("--nodes", "b,a")
    status = four.client.deployment(name)
    assert status.phase == "ready"
    assert [rank.node for rank in status.ranks] == ["b", "a"]
    assert list(four.leaders(four["b"])) == [f"sparkd-{name}-g1-r0"]
    assert list(four.leaders(four["a"])) == [f"sparkd-{name}-g1-r1"]
    assert status.endpoint is not None
    assert status.endpoint.base_url.startswith(f"http://{four['b'].mgmt.address}:")
    with Traffic(four, name) as traffic:
        traffic.flows()
    assert not traffic.lost


@pytest.mark.parametrize("how", ["restart", "kill"])
@pytest.mark.parametrize("which", ["agents", "coordinator"])
def test_a_daemon_that_ends_costs_nothing(four: Cluster, name: str, up: Up, which: str, how: str) -> None:
    up("--nodes", "a,b")
    a, b = four["a"], four["b"]
    ranks = four.leaders(a) | four.leaders(b)
    daemons = [(a, AGENT_UNIT), (b, AGENT_UNIT)] if which == "agents" else [(four.head, COORDINATOR_UNIT)]
    with Traffic(four, name) as traffic:
        for node, unit in daemons:
            before = main_pid(node, unit)
            if how == "kill":
                kill(node, before, signal.SIGKILL)
            else:
                node.run("systemctl", "restart", unit)
            until(lambda: main_pid(node, unit) not in {0, before}, f"{unit} on {node.name} to be back")  # noqa: B023
        traffic.flows()
        four.in_contact()
        status = four.until(name, "ready")
        traffic.flows()
    assert not traffic.lost
    assert four.leaders(a) | four.leaders(b) == ranks
    assert (status.generation, status.falls) == (1, 0)


def test_an_adopted_rank_still_tells_how_it_ended(four: Cluster, name: str, up: Up) -> None:
    up("--nodes", "a,b", "--set", "restart.backoff_s=0.01")
    b = four["b"]
    b.run("systemctl", "restart", AGENT_UNIT)
    four.in_contact()
    four.until(name, "ready")
    (leader,) = four.leaders(b).values()
    # Its pid on the node is that of the status; the kernel here knows it by another one.
    pid = four.client.deployment(name).ranks[1].pid
    assert pid is not None
    assert leader.pid != pid
    kill(b, pid, signal.SIGKILL)
    four.until(name, "ready", generation=2)
    (incident,) = four.client.incidents(name)
    fall = incident["fall"]
    assert (fall["rank"], fall["code"], fall["signal"], fall["how"]) == (1, None, 9, "shim"), fall
    cause = incident["explanation"]["cause"]
    assert (cause["id"], cause["rank"], cause["node"]) == ("PROCESS_KILLED", 1, "b")


def test_agents_are_upgraded_under_running_ranks(four: Cluster, name: str, up: Up) -> None:
    """Fault case 34: a new folder, the link, a restart."""
    up("--nodes", "a,b")
    ranks = four.leaders(four["a"]) | four.leaders(four["b"])
    with Traffic(four, name) as traffic:
        for node in four.nodes:
            software.use_agent(node, software.make_newer(node, four.bundle, "99.0.0"))
            node.run("systemctl", "restart", AGENT_UNIT)
            four.in_contact(node.name)
        traffic.flows()
        status = four.until(name, "ready")
    assert not traffic.lost
    assert four.leaders(four["a"]) | four.leaders(four["b"]) == ranks
    assert (status.generation, status.falls) == (1, 0)
    for node in four.nodes:
        assert four.agent(node)["version"] == "99.0.0"

"""The fabric from outside: nodes that call each other over real sockets, and the command for it."""

import json
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkd.records.defaults import DEFAULTS
from sparkd_agent.ears import Ears, neighbours
from sparkd_agent.reach import reach, reach_all
from tests.bed.agent_process import HOLDER, AgentProcess, until
from tests.bed.coordinator import Coordinator, sparkd
from tests.bed.stand_in import make_stand_in

QUICK = replace(DEFAULTS, fabric_connect_s=0.3, fabric_datagram_s=0.1)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_node_that_listens_is_reached(address: str) -> None:
    ears = Ears()
    port = ears.listen(address)["port"]
    found = reach(address, address, port, 9000)
    assert (found.host, found.tcp, found.udp, found.mtu) == (address, None, True, 9000)
    assert found.rtt_s is not None
    assert 0 < found.rtt_s < 1
    assert ears.heard(port)["heard"] == [address]
    assert ears.heard(1)["heard"] == []


def test_larger_than_the_interface_can() -> None:
    port = Ears().listen("127.0.0.1")["port"]
    assert reach("127.0.0.1", "127.0.0.1", port, 9_000_000).mtu == 9_000_000, (
        "no datagram is larger than 64 KiB"
    )


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        found = reach("127.0.0.1", "127.0.0.1", taken.getsockname()[1], 1500, QUICK)
    assert (found.tcp, found.rtt_s, found.udp, found.mtu) == ("connection refused", None, False, None)


def test_somebody_who_accepts_and_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = reach("127.0.0.1", "127.0.0.1", silent.getsockname()[1], None, QUICK)
    assert found.tcp == "no answer within 0.3 s"


def test_many_at_once_and_in_their_order() -> None:
    ears = [Ears() for _ in range(4)]
    targets = [
        {"host": f"127.0.0.{n}", "port": e.listen(f"127.0.0.{n}")["port"]} for n, e in enumerate(ears, 1)
    ]
    found = reach_all("127.0.0.1", targets, 1500)
    assert [(one.host, one.tcp) for one in found] == [(f"127.0.0.{n}", None) for n in range(1, 5)]


def test_listeners_close_by_themselves() -> None:
    port = Ears(replace(DEFAULTS, fabric_listen_s=0.2)).listen("127.0.0.1")["port"]

    def closed() -> bool:
        return reach("127.0.0.1", "127.0.0.1", port, None, QUICK).tcp == "connection refused"

    until(closed, "the listener to close")


def test_an_address_of_somebody_else() -> None:
    with pytest.raises(OSError, match="assign"):
        Ears().listen("192.0.2.77")


def test_who_answers_on_the_link(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net/arp").write_text(
        "IP address       HW type     Flags       HW address            Mask     Device\n"
        "192.168.100.2    0x1         0x2         02:fc:00:00:00:05     *        enp1s0f0np0\n"
        "192.168.100.3    0x1         0x0         00:00:00:00:00:00     *        enp1s0f0np0\n"
    )
    assert neighbours(tmp_path) == {"192.168.100.2": True, "192.168.100.3": False}
    assert neighbours(tmp_path / "nowhere") == {}


# The whole way: command, coordinator, agents.


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Coordinator]:
    names = {"node-1": "node-1", "node-2": "node-2"}
    coordinator = Coordinator(tmp_path, names, holder=HOLDER)
    python = make_stand_in(tmp_path / "engine")
    coordinator.start()
    with ExitStack() as stack:
        stack.callback(coordinator.end, signal.SIGKILL)
        for name in names:
            (tmp_path / name).mkdir()
            url = f"http://127.0.0.1:{coordinator.agents}"
            agent = AgentProcess(tmp_path / name, url, name, python=python)
            agent.start()
            stack.callback(agent.kill)
        until(
            lambda: [n["state"] for n in coordinator.ask("GET", "/v1/nodes").json] == ["alive"] * 2, "hellos"
        )
        yield coordinator


def test_nodes_call_each_other_when_they_are_asked_to(two: Coordinator) -> None:
    done = sparkd(two, "fabric", "test")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "node-1  -> node-2  connected" in done.stdout
    assert "node-2  -> node-1  connected" in done.stdout
    told: dict[str, Any] = json.loads(sparkd(two, "fabric", "show", "-o", "json").stdout)
    assert [(seat["name"], seat["address"]) for seat in told["seats"]] == [
        ("node-1", "127.0.0.1"),
        ("node-2", "127.0.0.1"),
    ]
    one = json.loads(sparkd(two, "fabric", "test", "--nodes", "node-2", "-o", "json").stdout)
    assert (one["view"]["topology"], one["calls"]) == ("alone", [])
    unknown = sparkd(two, "fabric", "test", "--nodes", "node-9")
    assert (unknown.returncode, "no node node-9" in unknown.stderr) == (1, True)

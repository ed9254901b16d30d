"""Both daemons as systemd sees them: ready without each other, a beat while they work, a word at the end."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bed.agent_process import AgentProcess
from tests.bed.coordinator import PATIENCE_S, Coordinator, send
from tests.bed.fake_agent import FakeAgent
from tests.bed.ports import free_port
from tests.bed.systemd import NotifySocket

INTERVAL_S = 0.9


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[NotifySocket]:
    one = NotifySocket(str(tmp_path / "notify"))
    yield one
    one.close()


def environment(systemd: NotifySocket) -> dict[str, str]:
    return {"NOTIFY_SOCKET": systemd.address, "WATCHDOG_USEC": str(int(INTERVAL_S * 1e6))}


@pytest.fixture
def agent(tmp_path: Path, systemd: NotifySocket) -> Iterator[AgentProcess]:
    """Its coordinator is nowhere."""
    one = AgentProcess(tmp_path, f"http://127.0.0.1:{free_port()}", env=environment(systemd))
    one.start()
    yield one
    one.end()


def test_an_agent_is_ready_without_a_coordinator_and_says_how_it_stands(
    agent: AgentProcess, systemd: NotifySocket
) -> None:
    assert systemd.hears() == "READY=1\nSTATUS=not connected yet; no rank"
    assert "cannot be reached" in systemd.hears_of("STATUS=")
    os.kill(agent.pid, signal.SIGTERM)
    assert systemd.hears_of("STOPPING=1")


def test_an_agent_that_stands_still_is_silent(agent: AgentProcess, systemd: NotifySocket) -> None:
    for _ in range(3):
        systemd.hears_of("WATCHDOG=1")
    os.kill(agent.pid, signal.SIGSTOP)
    try:
        systemd.heard()
        with pytest.raises(TimeoutError):
            systemd.hears(INTERVAL_S * 2)
    finally:
        os.kill(agent.pid, signal.SIGCONT)
    systemd.hears_of("WATCHDOG=1")


def test_a_coordinator_is_ready_when_both_ports_answer(tmp_path: Path, systemd: NotifySocket) -> None:
    coordinator = Coordinator(tmp_path, {"n1": "n1"}, env=environment(systemd))
    coordinator.start()
    try:
        ready = systemd.hears()
        for port in (coordinator.rest, coordinator.agents):
            assert send(port, "GET", "/healthz", token="x").status
        assert ready == "READY=1\nSTATUS=term 1; 0 deployments; 0 of 1 nodes in contact"
        FakeAgent(coordinator, "n1").hello()
        assert systemd.hears_of("1 of 1 nodes in contact", PATIENCE_S)
        assert systemd.hears_of("WATCHDOG=1")
    finally:
        coordinator.end()
    assert systemd.hears_of("STOPPING=1")

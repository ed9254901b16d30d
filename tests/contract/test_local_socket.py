"""`sparkd-agent status|ranks|logs`: a node can be asked while its coordinator is dead."""

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkd_agent.watch.driver import module_version
from tests.bed.agent_process import AgentProcess, ScriptedCoordinator, agent_process, until
from tests.bed.ranks import rank_spec

RANK = "sparkd-t-g1-r0"


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    """It runs one rank, and its coordinator is gone."""
    folder = tmp_path_factory.mktemp("agent")
    with ScriptedCoordinator() as script, agent_process(folder, script.url) as one:
        until(lambda: script.reports, "the first report")
        script.publish(1, ranks=(rank_spec(RANK),))
        script.rank(RANK, "running")
        script.close()
        until(lambda: "cannot be reached" in one.log, "the agent to miss its coordinator")
        yield one


def ask(agent: AgentProcess, *words: str, expect: int = 0) -> str:
    config = str(agent.folder / "agent.toml")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "sparkd_agent", *words, "--config", config],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == expect, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def test_status_says_how_things_stand(agent: AgentProcess) -> None:
    text = ask(agent, "status")
    assert RANK in text
    assert "cannot be reached" in text
    status = json.loads(ask(agent, "status", "-o", "json"))
    assert (status["node"], status["accepted"]) == ("node-1", "1.1")
    assert [(rank["name"], rank["state"]) for rank in status["ranks"]] == [(RANK, "running")]
    watch = status["watch"]
    assert watch["grade"] in ("calm", "watch")
    assert watch["sample"]["memory"]["total"] > watch["sample"]["memory"]["available"] > 0
    assert " GiB available of " in text
    if module_version() is None:
        assert watch["sample"]["gpu"] == {}, "unknown is not 0"


def test_ranks_and_their_logs(agent: AgentProcess) -> None:
    (rank,) = json.loads(ask(agent, "ranks"))
    os.kill(rank["pid"], 0)
    held = {one["pid"]: one for one in json.loads(ask(agent, "ranks", "--memory"))[RANK]}
    assert 0 < held[rank["pid"]]["pss_bytes"] <= held[rank["pid"]]["rss_bytes"]
    assert "engine" in held[rank["pid"]]["title"]
    until(lambda: "the engine is up" in ask(agent, "logs", RANK, "--lines", "5"), "the engine's line")
    for name in ("sparkd-t-g9-r0", "../../etc", "x"):
        assert f"no rank {name} was started on this node" in ask(agent, "logs", name, expect=1)


def test_only_its_own_user_may_ask(agent: AgentProcess) -> None:
    assert stat.S_IMODE((agent.folder / "agent.sock").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        (b"{\n", b"no question"),
        (b'{"ask": "secrets"}\n', b"nothing is known of 'secrets'"),
        (b"[]\n", b"no question"),
        (b'{"ask": "log", "rank": "sparkd-t-g1-r0", "lines": "many"}\n', b"error"),
        (b"x" * (1 << 20), b""),
        (b"", b""),
    ],
)
def test_nonsense_is_answered_and_harms_nobody(agent: AgentProcess, sent: bytes, answered: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(str(agent.folder / "agent.sock"))
        try:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            received = connection.recv(65536)
        except ConnectionError:
            received = b""
        assert answered in received
    assert agent.pid
    assert "node-1" in ask(agent, "status")


def test_a_second_agent_on_one_state_refuses(agent: AgentProcess) -> None:
    assert f"another agent runs on {agent.folder / 'state'}" in ask(agent, "run", expect=1)


def test_where_no_agent_is(tmp_path: Path, agent: AgentProcess) -> None:
    other = AgentProcess(tmp_path, agent.url)
    config = (agent.folder / "agent.toml").read_text().replace(str(agent.folder), str(tmp_path))
    (tmp_path / "agent.toml").write_text(config)
    assert f"no agent answers on {tmp_path / 'agent.sock'}" in ask(other, "status", expect=3)
    (tmp_path / "agent.toml").write_text(config.replace("[models]", "[modles]"))
    assert "[modles]: no such section" in ask(other, "status", expect=2)
    (tmp_path / "agent.toml").unlink()
    assert "cannot be read" in ask(other, "run", expect=2)

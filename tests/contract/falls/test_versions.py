"""What an agent of an earlier version left is read by today's; what a later one left is refused."""

import json
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sparkd.records.document import DeploymentSerial, Revision
from sparkd_agent.ledger import VERSION, Ledger
from tests.bed.local_set import until
from tests.fixtures.make_ledger import BOOT, spec

FIXTURES = Path(__file__).parents[2] / "fixtures"
LEDGERS = sorted(FIXTURES.glob("ledger-v*.sqlite"))
AGENT = (sys.executable, "-P", "-m", "sparkd_agent")


def test_there_is_a_ledger_of_each_version() -> None:
    assert [path.stem for path in LEDGERS] == [f"ledger-v{version}" for version in range(1, VERSION + 1)]


@pytest.mark.parametrize("stored", LEDGERS, ids=lambda path: path.stem)
def test_a_stored_ledger_keeps_all_it_knew(tmp_path: Path, stored: Path) -> None:
    path = shutil.copy(stored, tmp_path / "ledger.sqlite")
    ledger = Ledger(path, BOOT)
    try:
        fences = ledger.fences()
        assert (fences.accepted, fences.instance) == (Revision(4, 17), "instance-4")
        assert fences.generations == {"demo": 3}
        assert fences.deployments == (DeploymentSerial("demo", 2, "up", False),)
        rows = ledger.ranks()
        assert [(row.spec.name, row.state) for row in rows] == [
            ("sparkd-demo-g1-r1", "gone"),
            ("sparkd-demo-g2-r1", "exited"),
            ("sparkd-demo-g3-r1", "started"),
        ]
        known = spec(3)
        assert rows[2].spec.args == known.args
        assert rows[2].spec.descriptor == known.descriptor
        assert rows[2].spec.secrets == {}
        exit_, result = ledger.outbox()
        assert exit_.exit is not None
        assert (exit_.exit.rank, exit_.exit.signal) == ("sparkd-demo-g1-r1", 9)
        assert result.result is not None
        assert result.result.id == "demo.2.3.port.1"
    finally:
        ledger.close()
    ledger = Ledger(path, "another boot")
    assert {row.state for row in ledger.ranks()} == {"gone"}
    ledger.close()


@dataclass
class Node:
    folder: Path

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def configure(self) -> None:
        (self.state / "ranks").mkdir(parents=True)
        (self.folder / "token").write_text("x\n")
        (self.folder / "agent.toml").write_text(
            f"""
            [node]
            id = "node-b"
            name = "b"
            address = "127.0.0.1"
            [coordinator]
            urls = ["http://127.0.0.1:9"]
            token_file = "{self.folder / "token"}"
            holder = "h"
            [state]
            dir = "{self.state}"
            socket = "{self.folder / "socket"}"
            """
        )

    def ask(self, *words: str) -> "subprocess.CompletedProcess[str]":
        config = str(self.folder / "agent.toml")
        return subprocess.run(
            [*AGENT, "--config", config, *words], capture_output=True, text=True, timeout=60, check=False
        )

    def status(self) -> Any:
        answer = self.ask("status", "-o", "json")
        return json.loads(answer.stdout) if answer.returncode == 0 else None


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    node.configure()
    return node


def test_an_agent_starts_upon_what_an_older_one_left(node: Node) -> None:
    """Of another boot: the rank is gone, and the agent says how it ended."""
    shutil.copy(LEDGERS[0], node.state / "ledger.sqlite")
    rank = "sparkd-demo-g3-r1"
    shutil.copytree(FIXTURES / "shim-format-1" / rank, node.state / "ranks" / rank)
    with (node.folder / "agent.log").open("wb") as log:
        agent = subprocess.Popen([*AGENT, "--config", str(node.folder / "agent.toml"), "run"], stderr=log)
    try:
        status = until(node.status, "an answer of the agent")
        assert status["accepted"] == "4.17"
        found = until(
            lambda: next((r for r in node.status()["ranks"] if r["state"] == "gone"), None), "the rank's end"
        )
        assert (found["name"], found["exit"]["signal"], found["exit"]["how"]) == (rank, 9, "shim")
    finally:
        agent.terminate()
        assert agent.wait(20) == 0, (node.folder / "agent.log").read_text()


def test_an_agent_refuses_the_ledger_of_a_later_one(node: Node) -> None:
    path = node.state / "ledger.sqlite"
    shutil.copy(LEDGERS[-1], path)
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version={VERSION + 1}")
    answer = node.ask("run")
    assert answer.returncode == 1
    assert f"has version {VERSION + 1}, this agent knows {VERSION}" in answer.stderr
    assert "install the newer agent" in answer.stderr
    assert "Traceback" not in answer.stderr

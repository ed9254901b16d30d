"""sparkd as a site has it: a coordinator on this machine, and an agent in each of two rooms."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gpu_lab.rooms import Relay, Room, end, free_port
from benchmarks.gpu_lab.seen import until
from benchmarks.gpu_lab.setting import Setting
from sparkd.client import Client
from sparkd.errors import SparkdError
from sparkd.private_file import write_private
from sparkd.toml_text import toml_text

_PROGRAM = (sys.executable, "-P", "-m")
WAIVED = ("GPU_OWNER", "ORPHAN_ENGINECORE")
"""Lanes run side by side on one card: each sees the others' ranks as programs of strangers."""


@dataclass
class Cluster:
    folder: Path
    rooms: tuple[Room, Room]
    setting: Setting
    nodes: int = 2
    agents: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.state = self.folder / "coordinator"
        self.token = self.folder / "token"
        self._rest, self._agents = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self._rest}"
        write_private(self.token, os.urandom(16).hex() + "\n")
        self.client = Client(self.url, self.token.read_text().strip())
        self.env = {key: value for key, value in os.environ.items() if not key.startswith("SPARKD_")} | {
            "SPARKD_COORDINATOR": self.url,
            "SPARKD_TOKEN_FILE": str(self.token),
            "SPARKD_CONFIG_DIR": str(self.folder / "config"),
            "COLUMNS": "160",
        }

    def start(self) -> None:
        nodes = [{"id": os.urandom(8).hex(), "name": room.name} for room in self.rooms]
        write_private(self.state / "holder.json", json.dumps({"holder": "lab", "nodes": nodes}))
        argv = [
            *(*_PROGRAM, "sparkd", "coordinator", "run", "--state-dir", str(self.state)),
            *("--rest", f"127.0.0.1:{self._rest}", "--agents", f"127.0.0.1:{self._agents}"),
            *("--token-file", str(self.token)),
        ]
        with (self.folder / "coordinator.log").open("ab") as log:
            self.coordinator = subprocess.Popen(
                argv, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._relays = [Relay(room, self._agents) for room in self.rooms]
        for room, node in zip(self.rooms, nodes, strict=True):
            self._start_agent(room, node["id"])
        until(self._in_contact, "both agents to be in contact", 60.0)

    def _start_agent(self, room: Room, node_id: str) -> None:
        folder = self.folder / room.name
        config: dict[str, dict[str, object]] = {
            "node": {"id": node_id, "name": room.name, "address": room.address},
            "coordinator": {
                "urls": [f"http://127.0.0.1:{self._agents}"],
                "token_file": str(self.token),
                "holder": "lab",
            },
            "engine": {"default": {"python": self.setting.python}},
            "models": {"roots": [str(self.setting.model.parent)]},
            "state": {"dir": str(folder), "socket": str(self.folder / f"{room.name}.sock")},
            "rank": {"env": self.setting.node_env(room.name), "user": "root", "runtime": "process"},
        }
        write_private(self.folder / f"{room.name}.toml", toml_text(config))
        argv = [*_PROGRAM, "sparkd_agent", "run", "--config", str(self.folder / f"{room.name}.toml")]
        with (self.folder / f"{room.name}.log").open("ab") as log:
            self.agents.append(room.start(argv, self.env, log, log))

    def _in_contact(self) -> bool:
        for daemon in (self.coordinator, *self.agents):
            if daemon.poll() is not None:
                raise RuntimeError(f"a daemon of sparkd ended with {daemon.returncode}")
        try:
            return [node.state for node in self.client.nodes()] == ["alive", "alive"]
        except SparkdError:
            return False

    def run(self, *words: str, timeout_s: float = 300.0) -> "subprocess.CompletedProcess[str]":
        """The command line. Raises subprocess.TimeoutExpired."""
        return subprocess.run(
            [*_PROGRAM, "sparkd", *words],
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )

    def agent(self, at: int, *words: str) -> str:
        """`sparkd-agent` of one node."""
        config = str(self.folder / f"{self.rooms[at].name}.toml")
        argv = [*_PROGRAM, "sparkd_agent", *words, "--config", config]
        return subprocess.run(
            argv, env=self.env, capture_output=True, text=True, check=False, timeout=20
        ).stdout

    def end(self) -> None:
        for daemon in (*self.agents, self.coordinator):
            end(daemon, 8.0)
        for relay in self._relays:
            relay.close()


@contextmanager
def cluster(folder: Path, rooms: tuple[Room, Room], setting: Setting) -> Iterator[Cluster]:
    made = Cluster(folder, rooms, setting)
    try:
        made.start()
        yield made
    finally:
        made.end()

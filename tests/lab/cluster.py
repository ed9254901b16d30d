"""Nodes with sparkd on them as a Spark owner has it, and questions to their coordinator.

The coordinator is on `head`, which serves no ranks; every other node has an agent.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from sparkd.client import Client
from sparkd.coordinator.tokens import mint_token
from sparkd.enrol.authority import make_authority
from sparkd.enrol.roster import enrol_node, mint_node_id
from sparkd.errors import SparkdError
from sparkd.records.event import Event
from sparkd.records.status import DeploymentStatus, NodeStatus
from sparkd.toml_text import toml_text
from sparkd_agent.procfs import ProcessRef, ProcFs
from tests.bed.secure import make_identity
from tests.lab import software
from tests.lab.image import ENGINE, cache
from tests.lab.lab import Lab
from tests.lab.node import STATE, Node, until
from tests.lab.tunnel import Tunnel

T = TypeVar("T")
HEAD: Final = "head"
AGENT_UNIT: Final = "sparkd-agent.service"
COORDINATOR_UNIT: Final = "sparkd-coordinator.service"
USER: Final = "spark"
"""Whom ranks run as; the first user of a node."""
WHEELS: Final = cache() / "wheels"
COORDINATOR_STATE: Final = f"{STATE}/coordinator"
AGENTS_PORT: Final = 7071
IDENTITY: Final = "/etc/sparkd/tls"
AGENT_CONFIG: Final = "/etc/sparkd/agent.toml"
_PROC: Final = ProcFs()

Engine = Literal["stand-in", "vllm"]

COORDINATOR_DROP_IN: Final = f"""
[Service]
ExecStart=
ExecStart=/usr/local/bin/sparkd coordinator run --state-dir {COORDINATOR_STATE} --agents {{agents}}
"""


class Cluster:
    def __init__(
        self, folder: Path, names: Sequence[str] = ("a", "b", "c", "d"), engine: Engine = "stand-in"
    ) -> None:
        software.unpack_tool(folder / "tool")
        self.lab = Lab([HEAD, *names], software.shared(folder / "tool"))
        self.head = self.lab[HEAD]
        self.nodes = [self.lab[name] for name in names]
        self.engine = engine
        self.rest = Tunnel(lambda: f"/proc/{self.head.leader}/ns/net", ("127.0.0.1", 7070))
        try:
            self.lab.boot()
            self.bundle = software.make_bundle(self.head, WHEELS)
            self._install()
        except BaseException:
            self.close()
            raise
        self.client = Client(self.rest.url, self.token)

    def __getitem__(self, name: str) -> Node:
        return self.lab[name]

    def _install(self) -> None:
        """What `sparkd init` and `sparkd nodes add` do, by hand: a fifth of the time, and without SSH."""
        head = self.head
        head.run("useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", "sparkd")
        software.install_tool(head)
        state = head.at(COORDINATOR_STATE)
        state.mkdir(mode=0o700)
        authority = make_authority(state, time.time())
        self.token = mint_token(state, "lab", "admin")
        head.write(f"{STATE}/token", self.token, 0o600)
        self._unit(head, COORDINATOR_UNIT)
        agents = f"{head.mgmt.address}:{AGENTS_PORT}"
        drop_in = COORDINATOR_DROP_IN.format(agents=agents)
        head.write(f"/etc/systemd/system/{COORDINATOR_UNIT}.d/address.conf", drop_in)
        for node in self.nodes:
            node_id = mint_node_id()
            holder = enrol_node(state, node_id, node.name).holder
            self._install_agent(node)
            make_identity(node.at(IDENTITY), authority, node_id)
            node.write(AGENT_CONFIG, self._agent_config(node, node_id, holder, f"https://{agents}"), 0o600)
        head.run("chown", "-R", "sparkd:sparkd", COORDINATOR_STATE)
        for node in (head, *self.nodes):
            node.run("systemctl", "daemon-reload")
            unit = COORDINATOR_UNIT if node is head else AGENT_UNIT
            node.run("systemctl", "enable", "-q", unit)
            node.run("systemctl", "start", "--no-block", unit)

    def _install_agent(self, node: Node) -> None:
        node.run("useradd", "--create-home", "--shell", "/bin/bash", USER)
        software.unpack_agent(node, self.bundle)
        self._unit(node, AGENT_UNIT)

    def _unit(self, node: Node, name: str) -> None:
        node.write(f"/etc/systemd/system/{name}", (software.ROOT / "agents" / "systemd" / name).read_text())

    def _agent_config(self, node: Node, node_id: str, holder: str, url: str) -> str:
        python = f"{ENGINE}/bin/python" if self.engine == "vllm" else software.install_stand_in(node)
        return toml_text(
            {
                "node": {
                    "id": node_id,
                    "name": node.name,
                    "address": node.mgmt.address,
                    "fabric_address": node.fabric.address,
                    "fabric_interface": node.fabric.interface,
                },
                "coordinator": {"urls": [url], "identity": IDENTITY, "holder": holder},
                "engine": {"default": {"python": python}},
                "models": {"roots": [software.MODELS]},
                "state": {"dir": f"{STATE}/agent", "socket": "/run/sparkd/agent/agent.sock"},
                "rank": {"user": USER},
            }
        )

    def close(self) -> None:
        self.rest.close()
        self.lab.close()

    # The coordinator's view.

    def sparkd(self, *words: str, ok: Sequence[int] = (0,), timeout_s: float = 120) -> str:
        """The command line, on the coordinator's machine as root."""
        return self.head.run("sparkd", *words, ok=ok, timeout_s=timeout_s).stdout

    def node_status(self, name: str) -> NodeStatus | None:
        try:
            return next((one for one in self.client.nodes() if one.name == name), None)
        except SparkdError:
            return None

    def in_contact(self, *names: str) -> None:
        """Wait until the agents of these nodes (all by default) are alive in the coordinator's eyes."""

        def is_alive(name: str) -> bool:
            status = self.node_status(name)
            return status is not None and status.state == "alive"

        for name in names or [node.name for node in self.nodes]:
            until(partial(is_alive, name), f"{name} to be in contact")

    def status(self, name: str) -> DeploymentStatus | None:
        """None while no coordinator answers, or while it does not know the deployment."""
        try:
            return self.client.deployment(name)
        except SparkdError:
            return None

    def until(self, name: str, *phases: str, generation: int = 0, timeout_s: float = 60) -> DeploymentStatus:
        """Wait for one of the phases, of at least that generation; over deaths of the coordinator too."""

        def look() -> DeploymentStatus | None:
            seen = self.status(name)
            return seen if seen and seen.phase in phases and seen.generation >= generation else None

        try:
            seen = until(look, f"{name} to be {' or '.join(phases)}", timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.status(name)}\n{self.told()}") from error
        assert seen is not None
        return seen

    def events(self, name: str | None = None) -> tuple[Event, ...]:
        return self.client.recent_events(limit=1000, deployment=name)

    def agent(self, node: Node) -> dict[str, Any]:
        """What the node's agent says of itself, there."""
        told = node.run(f"{software.AGENTS}/current/bin/sparkd-agent", "status", "-o", "json").stdout
        return dict(json.loads(told))

    def told(self) -> str:
        """All events, for the words of a failed test."""
        try:
            return "\n".join(
                f"{e.at:.3f} {e.kind} {e.deployment} {e.node} {e.to}: {e.reason}" for e in self.events()
            )
        except SparkdError as error:
            return str(error)

    # What really runs.

    def leaders(self, node: Node) -> dict[str, ProcessRef]:
        """The first process of each rank on the node, by the rank's name, as this machine's kernel has it."""
        if not node.on:
            return {}
        home = _namespace(node.leader)
        found = {}
        for stat in _PROC.stats().values():
            name = None if stat.ended else _PROC.rank_name(stat.pid)
            if name is not None and _namespace(stat.pid) == home and _is_leader(stat.pid):
                found[name] = stat.ref
        return found


def _is_leader(pid: int) -> bool:
    """Whether it leads its session there: a pid of that namespace, so this machine's numbers do not tell."""
    status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    pids = {
        line.split()[0]: line.split()[-1]
        for line in status.splitlines()
        if line.startswith(("NSpid:", "NSsid:"))
    }
    return pids.get("NSpid:") == pids.get("NSsid:")


def _namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


@contextmanager
def cluster(
    folder: Path, names: Sequence[str] = ("a", "b", "c", "d"), engine: Engine = "stand-in"
) -> Iterator[Cluster]:
    made = Cluster(folder, names, engine)
    try:
        made.in_contact()
        yield made
    finally:
        made.close()

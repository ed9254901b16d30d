"""A coordinator and agents as processes of a test, each of which it may kill, stop, arm and start again.

`local_set.py` shows a set as a user has it; here a test holds every daemon itself.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from sparkd.client import Client
from sparkd.errors import SparkdError
from sparkd.failpoints import VARIABLE
from sparkd.local_config import Machinery, agent_folder, write_agent_config, write_holder, write_token
from sparkd.paths import find_paths
from sparkd.profile.lookup import load_profile
from sparkd.profile.merge import resolve
from sparkd.records.intent import Intent
from sparkd.records.names import parse_rank_name
from sparkd.records.status import DeploymentStatus
from sparkd_agent.procfs import FOLDER_VARIABLE, RANK_VARIABLE, ProcessRef, ProcFs
from tests.bed.ports import free_port
from tests.bed.stand_in import make_stand_in, remove_segments

T = TypeVar("T")
PATIENCE_S = 40.0
"""For what takes a second or two on an idle machine."""
PROC = ProcFs()


def until(look: Callable[[], T], what: str, timeout_s: float = PATIENCE_S) -> T:
    """Poll until `look()` is true; give what it gave."""
    end = time.monotonic() + timeout_s
    while not (seen := look()):
        assert time.monotonic() < end, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.02)
    return seen


@dataclass
class DaemonProcess:
    """One daemon over its lives."""

    name: str
    argv: list[str]
    env: dict[str, str]
    log: Path
    life: "subprocess.Popen[bytes] | None" = None
    lives: int = 0

    def start(self, failpoints: str = "") -> None:
        assert not self.alive, f"{self.name} runs already"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.life = subprocess.Popen(
                self.argv,
                env=self.env | ({VARIABLE: failpoints} if failpoints else {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.lives += 1

    @property
    def alive(self) -> bool:
        return self.life is not None and self.life.poll() is None

    @property
    def pid(self) -> int:
        assert self.life is not None
        return self.life.pid

    def signal(self, number: int) -> None:
        assert self.life is not None
        self.life.send_signal(number)

    def kill(self) -> None:
        if self.alive:
            self.signal(signal.SIGKILL)
        self.wait()

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Until it has ended; gives how, as `Popen.returncode` does."""
        assert self.life is not None
        return self.life.wait(timeout_s)

    def end(self) -> None:
        if self.alive:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.wait(10)
            self.kill()


@dataclass(frozen=True, slots=True, order=True)
class Sighting:
    """One live process of a rank, its shim not counted; `node` counts from 1."""

    node: int
    rank: str
    ref: ProcessRef = field(compare=False)
    leader: bool = False

    @property
    def deployment(self) -> str:
        parsed = parse_rank_name(self.rank)
        assert parsed is not None
        return parsed.deployment

    @property
    def generation(self) -> int:
        parsed = parse_rank_name(self.rank)
        assert parsed is not None
        return parsed.generation


class Cluster:
    """Its own state, engine, model and sockets, all below `folder`. Nothing runs before `start`."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder = folder
        self.nodes = nodes
        (folder / "models" / "tiny").mkdir(parents=True)
        (folder / "models" / "tiny" / "config.json").write_text("{}")
        (folder / "run").mkdir(mode=0o700)
        self.engine = folder / "engine"
        python = make_stand_in(self.engine)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SPARKD_", "XDG_", "STAND_IN_"))}
        env = kept | {"XDG_STATE_HOME": str(folder / "state"), "XDG_RUNTIME_DIR": str(folder / "run")}
        self.paths = find_paths(env)
        rest, agents = free_port(), free_port()
        token = write_token(self.paths)
        holder = write_holder(self.paths, nodes)
        self.coordinator_state = self.paths.local / "coordinator"
        self.token = token.read_text().strip()
        self.client = Client(f"http://127.0.0.1:{rest}", self.token)
        interpreter = [sys.executable, "-P", "-m"]
        self.coordinator = DaemonProcess(
            "coordinator",
            [
                *(*interpreter, "sparkd", "coordinator", "run", "--state-dir", str(self.coordinator_state)),
                *("--rest", f"127.0.0.1:{rest}", "--agents", f"127.0.0.1:{agents}"),
                *("--token-file", str(token)),
            ],
            env,
            self.paths.local / "coordinator.log",
        )
        machinery = Machinery(str(python), (str(folder / "models"),))
        url = f"http://127.0.0.1:{agents}"
        self.agents = [
            DaemonProcess(
                f"local-{i}",
                [
                    *(*interpreter, "sparkd_agent", "run", "--config"),
                    str(write_agent_config(self.paths, i, url, holder, machinery)),
                ],
                env,
                agent_folder(self.paths, i) / "agent.log",
            )
            for i in range(1, nodes + 1)
        ]
        self._ranks_of = {f"{self.agent_state(i)}/ranks/": i for i in range(1, nodes + 1)}
        self._known: dict[ProcessRef, tuple[int, str] | None] = {}

    @property
    def daemons(self) -> list[DaemonProcess]:
        return [self.coordinator, *self.agents]

    def agent_state(self, i: int) -> Path:
        return agent_folder(self.paths, i) / "state"

    def start(self) -> None:
        """Start what does not run, and wait until all agents are in contact."""
        for daemon in self.daemons:
            if not daemon.alive:
                daemon.start()
        until(self.in_contact, "every agent to be in contact")

    def in_contact(self) -> bool:
        try:
            states = [node.state for node in self.client.nodes()]
        except SparkdError:
            return False
        return states == ["alive"] * self.nodes

    def intent(self, *sets: str) -> Intent:
        """The tiny profile on a port of its own, with hardly any back-off and no wait for memory."""
        asked = (
            "restart.backoff_s=0.01",
            "memory.returned.margin_gib=1000",
            f"api.port={free_port()}",
            *sets,
        )
        return resolve(load_profile("tiny"), sets=asked).intent

    def status(self, name: str) -> DeploymentStatus | None:
        """None while no coordinator answers, or while it does not know the deployment."""
        try:
            return self.client.deployment(name)
        except SparkdError:
            return None

    def until(self, name: str, *phases: str, generation: int = 0) -> DeploymentStatus:
        """Wait for one of the phases, of at least that generation; over deaths of the coordinator too."""

        def look() -> DeploymentStatus | None:
            seen = self.status(name)
            return seen if seen and seen.phase in phases and seen.generation >= generation else None

        try:
            return until(look, f"{name} to be {' or '.join(phases)}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.status(name)}") from error

    def sightings(self) -> list[Sighting]:
        """Every live process of a rank of this cluster that shows its environment: never the titled ones, but
        always a leader while it lives.
        """
        seen = []
        for stat in PROC.stats().values():
            if stat.ended:
                continue
            if stat.ref not in self._known:
                self._note(stat.ref)
            found = self._known.get(stat.ref)
            if found is not None:
                seen.append(Sighting(*found, stat.ref, stat.session == stat.pid))
        # Asked twice: whatever is given was alive together, at the moment between the two looks.
        return sorted(one for one in seen if PROC.alive(one.ref))

    def _note(self, ref: ProcessRef) -> None:
        folder = PROC.environ_value(ref.pid, FOLDER_VARIABLE) or ""
        node = next((i for prefix, i in self._ranks_of.items() if folder.startswith(prefix)), None)
        name = PROC.environ_value(ref.pid, RANK_VARIABLE)
        if node is not None and name is not None:
            self._known[ref] = (node, name)
        elif time.clock_gettime(time.CLOCK_BOOTTIME) - ref.starttime / os.sysconf("SC_CLK_TCK") > 2.0:
            self._known[ref] = None  # old enough to have been executed: it will never be a rank

    def close(self) -> None:
        """End everything of it; what a failed test left, too."""
        for daemon in self.daemons:
            daemon.end()
        end = time.monotonic() + 10
        while (left := self.sightings()) and time.monotonic() < end:
            for one in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one.ref.pid, signal.SIGKILL)
            time.sleep(0.02)
        remove_segments(self.engine)


@contextmanager
def cluster(folder: Path, nodes: int) -> Iterator[Cluster]:
    made = Cluster(folder, nodes)
    try:
        yield made
    finally:
        made.close()

"""A local set of a test's own: the real coordinator, real agents, and deployments watched from outside."""

import json
import os
import signal
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from sparkd.client import Client
from sparkd.daemon import Daemon, end_daemons, is_alive
from sparkd.errors import CoordinatorUnreachable, SparkdError
from sparkd.local import Programs, Surroundings, ensure_local_set, local_client
from sparkd.local_set import LocalSet, read_local_set
from sparkd.paths import find_paths
from sparkd.profile.lookup import load_profile
from sparkd.profile.merge import resolve
from sparkd.records.event import Event
from sparkd.records.status import DeploymentStatus
from sparkd_agent.procfs import ProcFs
from tests.bed.ports import free_port

T = TypeVar("T")
PATIENCE_S = 60.0
"""For what takes about a second on an idle machine."""

_PROC = ProcFs()


def until(look: Callable[[], T], what: str, timeout_s: float = PATIENCE_S) -> T:
    """Poll until `look()` is true; give what it gave."""
    end = time.monotonic() + timeout_s
    while not (seen := look()):
        assert time.monotonic() < end, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.02)
    return seen


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    starttime: int
    title: str

    @property
    def alive(self) -> bool:
        stat = _PROC.stat(self.pid)
        return stat is not None and stat.starttime == self.starttime and not stat.ended


def processes_of(rank: str) -> list[Process]:
    """All that lives of a rank, its shim included: by its name in the environment or the command line, and
    by the session of those (a title set by setproctitle hides the environment).
    """
    stats = {pid: stat for pid, stat in _PROC.stats().items() if not stat.ended}
    named = {pid for pid in stats if _PROC.rank_name(pid) == rank}
    sessions = {stats[pid].session for pid in named}
    shims = {pid for pid in stats if _PROC.cmdline(pid)[-1:] == (rank,)}
    mine = named | shims | {pid for pid, stat in stats.items() if stat.session in sessions}
    return [Process(pid, stats[pid].starttime, _PROC.title(pid)) for pid in sorted(mine)]


@dataclass
class Bed:
    """A user with an engine, a model, and a local set in a folder of the test's own."""

    folder: Path
    engine: Path
    models: Path
    nodes: int = 2
    programs: Programs = field(default_factory=Programs)
    daemons: set[Daemon] = field(default_factory=set)
    more_env: dict[str, str] = field(default_factory=dict)
    image: str | None = None
    """What deployments run in, unless a test says otherwise; None: the engine."""
    sets: tuple[str, ...] = ()
    """Of every deployment."""

    def __post_init__(self) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SPARKD_", "XDG_"))}
        self.env = kept | {
            "HOME": str(self.folder),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "SPARKD_CONFIG_DIR": str(self.folder / "config"),
            "SPARKD_ENGINE": str(self.engine),
            "SPARKD_MODELS": str(self.models),
            **self.more_env,
        }
        self.paths = find_paths(self.env)

    def start(self) -> LocalSet:
        """Start what of the set does not run."""
        around = Surroundings(self.paths, self.env, self.folder, self.programs)
        local = ensure_local_set(self.nodes, around)
        self.daemons |= set(local.daemons)
        return local

    @property
    def local(self) -> LocalSet:
        found = read_local_set(self.paths)
        assert found is not None
        return found

    @property
    def client(self) -> Client:
        return local_client(self.paths, self.local)

    def kill(self, *daemons: Daemon) -> None:
        """SIGKILL to daemons of the set, all in the same moment."""
        for daemon in daemons:
            os.kill(daemon.pid, signal.SIGKILL)
        until(lambda: not any(map(is_alive, daemons)), "killed daemons to be gone")

    def up(self, name: str, *sets: str, image: str | None = None) -> "Deployment":
        """Ask for the tiny profile under a name, on a port of its own, with hardly any back-off."""
        asked = (f"api.port={free_port()}", "restart.backoff_s=0.01", *self.sets, *sets)
        intent = resolve(load_profile("tiny"), sets=asked, image=image or self.image).intent
        deployment = Deployment(self, name)
        self.client.up(name, intent)
        return deployment

    def end(self) -> None:
        """Nothing of the set may stay, whatever a test did."""
        try:
            client = self.client
            names = [
                one.name for one in client.status().deployments if one.phase not in ("stopped", "failed")
            ]
            for name in names:
                client.down(name)
            for name in names:
                until(
                    lambda name=name: client.deployment(name).phase in ("stopped", "failed"), f"{name} to end"
                )  # type: ignore[misc]
        finally:
            end_daemons(list(self.daemons), 5.0)


@contextmanager
def local_bed(
    folder: Path,
    engine: Path,
    models: Path,
    nodes: int = 2,
    programs: Programs | None = None,
    *,
    more_env: dict[str, str] | None = None,
    image: str | None = None,
    sets: tuple[str, ...] = (),
) -> Iterator[Bed]:
    programs = programs or Programs()
    # Where vLLM makes its sockets, and leaves them when it is killed; a short path, as sockets need one.
    with tempfile.TemporaryDirectory(prefix="sparkd-", ignore_cleanup_errors=True) as temporary:
        bed = Bed(
            folder,
            engine,
            models,
            nodes,
            replace(programs, agent=("env", f"TMPDIR={temporary}", *programs.agent)),
            more_env=more_env or {},
            image=image,
            sets=sets,
        )
        bed.start()
        try:
            yield bed
        finally:
            bed.start()
            bed.end()


class Deployment:
    def __init__(self, bed: Bed, name: str) -> None:
        self.bed = bed
        self.name = name

    def status(self) -> DeploymentStatus:
        return self.bed.client.deployment(self.name)

    def until(
        self, phase: str, *, generation: int | None = None, timeout_s: float = PATIENCE_S
    ) -> DeploymentStatus:
        """Wait for a phase, of at least that generation; over a restart of the coordinator too."""

        def look() -> DeploymentStatus | None:
            try:
                now = self.status()
            except CoordinatorUnreachable:
                return None
            if now.phase == "failed" and phase != "failed":
                raise AssertionError(f"{self.name} failed: {now.reason}\n{now.last_fall}")
            return now if now.phase == phase and now.generation >= (generation or 0) else None

        try:
            return until(look, f"{self.name} to be {phase}", timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.status()}") from error

    def ready(self, *, generation: int | None = None, timeout_s: float = PATIENCE_S) -> DeploymentStatus:
        return self.until("ready", generation=generation, timeout_s=timeout_s)

    def rank_name(self, rank: int, generation: int | None = None) -> str:
        return f"sparkd-{self.name}-g{generation or self.status().generation}-r{rank}"

    def processes(self, rank: int, generation: int | None = None) -> list[Process]:
        return processes_of(self.rank_name(rank, generation))

    def all_processes(self, generation: int | None = None) -> list[Process]:
        generation = generation or self.status().generation
        return [p for rank in range(self.bed.nodes) for p in self.processes(rank, generation)]

    def process(self, rank: int, title: str, timeout_s: float = PATIENCE_S) -> Process:
        """The first process of the rank with that title; `leader` and `shim` are named by their part."""
        if title == "leader":
            pid = until(lambda: self.status().ranks[rank].pid, f"rank {rank}'s leader", timeout_s)
            stat = _PROC.stat(pid)
            assert stat is not None
            return Process(pid, stat.starttime, _PROC.title(pid))

        def look() -> Process | None:
            found = [p for p in self.processes(rank) if _is(p, title)]
            return found[0] if found else None

        return until(look, f"{title} of rank {rank}", timeout_s)

    def incidents(self) -> list[dict[str, Any]]:
        """The newest first."""
        return self.bed.client.incidents(self.name)

    def events(self) -> tuple[Event, ...]:
        return self.bed.client.recent_events(limit=1000, deployment=self.name)

    def down(self) -> DeploymentStatus:
        self.bed.client.down(self.name)
        return self.until("stopped")


def _is(process: Process, title: str) -> bool:
    if title == "shim":
        return "/sparkd_agent/shim/" in process.title
    return process.title.startswith(title)


def all_gone(processes: list[Process], timeout_s: float = PATIENCE_S) -> None:
    until(lambda: not any(p.alive for p in processes), f"the end of {processes}", timeout_s)


def segments(processes: list[Process], folder: Path = Path("/dev/shm")) -> set[Path]:
    """The shared-memory files that the processes map or hold open, semaphores included."""
    files = {file for process in processes for file in _PROC.files_under(process.pid, str(folder))}
    used = {(file.device, file.inode) for file in files}
    return {path for path in folder.iterdir() if _identity(path) in used}


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        at = path.stat()
    except FileNotFoundError:
        return None
    return at.st_dev, at.st_ino


class Watch:
    """Follows the events of a deployment on the stream, and stamps each when it arrives (monotonic)."""

    def __init__(self, client: Client, deployment: str) -> None:
        self.seen: list[tuple[float, Event]] = []
        self._stream = client.events(deployment=deployment, after=None)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for message in self._stream:
                if isinstance(message, Event):
                    self.seen.append((time.monotonic(), message))
        except SparkdError:
            return

    def reached(self, phase: str, after: float, timeout_s: float = PATIENCE_S) -> float:
        """When the phase was first told of after a moment."""

        def look() -> float | None:
            return next((at for at, e in self.seen if at >= after and e.to == phase), None)

        return until(look, f"the stream to tell of {phase}", timeout_s)


def ask(deployment: Deployment, question: str = "12 x 7", **more: object) -> str:
    """One chat completion's text."""
    endpoint = deployment.status().endpoint
    assert endpoint is not None
    return ask_at(endpoint.base_url, endpoint.models[0], question, **more)


def ask_at(base_url: str, model: str, question: str, **more: object) -> str:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 8,
        **more,
    }
    request = urllib.request.Request(
        f"{base_url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])

"""Local mode: one coordinator and N agents of this user, as background daemons on loopback."""

import fcntl
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from sparkd.client import Client
from sparkd.daemon import end_daemons, is_alive, start_daemon
from sparkd.errors import Conflict, LocalSetFailed, SparkdError, UsageError
from sparkd.local_config import (
    Machinery,
    agent_folder,
    agent_name,
    find_machinery,
    write_agent_config,
    write_holder,
    write_token,
    written_machinery,
)
from sparkd.local_facts import MAX_LOCAL_NODES
from sparkd.local_set import LocalSet, read_local_set
from sparkd.paths import Paths, find_paths
from sparkd.private_file import write_private
from sparkd.records.defaults import DEFAULTS, Defaults

_NEVER = {7070, 7071}
"""A site's own coordinator may be started later, and its ports must be free then."""


@dataclass(frozen=True, slots=True)
class Programs:
    """How the daemons are started. `-P`: the folder that we are in must not shadow a module."""

    coordinator: tuple[str, ...] = (sys.executable, "-P", "-m", "sparkd", "coordinator", "run")
    agent: tuple[str, ...] = (sys.executable, "-P", "-m", "sparkd_agent", "run")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Everything about this machine that local mode depends on."""

    paths: Paths = field(default_factory=find_paths)
    env: Mapping[str, str] = field(default_factory=lambda: os.environ)
    cwd: Path = field(default_factory=Path.cwd)
    programs: Programs = field(default_factory=Programs)
    limits: Defaults = DEFAULTS
    sleep: Callable[[float], None] = time.sleep
    say: Callable[[str], None] = lambda _text: None


def local_client(paths: Paths, local: LocalSet, limits: Defaults = DEFAULTS) -> Client:
    return Client(local.url, (paths.local / "token").read_text().strip(), limits=limits)


def ensure_local_set(n: int, around: Surroundings | None = None) -> LocalSet:
    """A live set of `n` nodes: the one that runs, repaired if daemons of it died, or a new one.

    Raises UsageError without an engine, Conflict when a set of other size or engine runs deployments,
    LocalSetFailed with the last log lines when a daemon does not start.
    """
    around = around or Surroundings()
    if not 1 <= n <= MAX_LOCAL_NODES:
        raise UsageError(f"--local {n}: between 1 and {MAX_LOCAL_NODES} nodes")
    with _locked(around):
        found = read_local_set(around.paths)
        if found and any(is_alive(daemon) for daemon in found.daemons):
            wanted = _wanted(around)
            written = written_machinery(around.paths)
            found = _start(found, written or wanted or find_machinery(around.env, around.cwd), around)
            if found.n == n and (wanted is None or wanted == written):
                return found
            _refuse_if_busy(found, n, wanted, around)
            _end(found, around)
            found = None
        machinery = find_machinery(around.env, around.cwd)
        return _start(found if found and found.n == n else _new_set(n), machinery, around)


def end_local_set(around: Surroundings | None = None) -> None:
    """End the daemons of the set; what it knew stays on disk. Harmless when there is none.

    Raises LocalSetFailed with the pids of daemons that survived SIGKILL.
    """
    around = around or Surroundings()
    with _locked(around):
        if found := read_local_set(around.paths):
            _end(found, around)


def _wanted(around: Surroundings) -> Machinery | None:
    """None where nobody asked for any: a live set can be used from a folder without an engine."""
    try:
        return find_machinery(around.env, around.cwd)
    except UsageError:
        if around.env.get("SPARKD_ENGINE"):
            raise
        return None


def _refuse_if_busy(found: LocalSet, n: int, wanted: Machinery | None, around: Surroundings) -> None:
    status = local_client(around.paths, found, around.limits).status()
    busy = [one.name for one in status.deployments if one.phase not in {"stopped", "failed"}]
    if not busy:
        return
    if found.n != n:
        raise Conflict(
            f"the local set has {found.n} nodes and runs {', '.join(busy)}; "
            f"use --local {found.n}, or `sparkd down {' '.join(busy)}` first"
        )
    engine = wanted.python if wanted else "another engine"
    raise Conflict(
        f"the local set runs {', '.join(busy)} with another engine or other model roots than {engine}; "
        f"`sparkd down {' '.join(busy)}` first, or go to the folder that it was started in"
    )


def _start(local: LocalSet, machinery: Machinery, around: Surroundings) -> LocalSet:
    """Start what does not run. What this call started is ended again if the set does not come to life."""
    paths, started = around.paths, []
    local = _with_ports(local, around)
    missing = [i for i in range(1, local.n + 1) if i > len(local.agents) or not is_alive(local.agents[i - 1])]
    try:
        token = write_token(paths)
        (paths.local / "last.json").unlink(missing_ok=True)
        if not is_alive(local.coordinator):
            around.say(f"starting a local coordinator at {local.url}")
            write_holder(paths, local.n)
            argv = (
                *around.programs.coordinator,
                *("--state-dir", str(paths.local / "coordinator")),
                *("--rest", local.url.removeprefix("http://")),
                *("--agents", local.agents_url.removeprefix("http://")),
                *("--token-file", str(token)),
            )
            daemon = start_daemon(argv, paths.local / "coordinator.log", paths.local)
            started.append(daemon)
            local = replace(local, pid=daemon.pid, start_time=daemon.start_time, boot=daemon.boot)
            _write(local, paths)
        if missing:
            around.say(f"starting {', '.join(map(agent_name, missing))}")
        holder = write_holder(paths, local.n)
        for i in missing:
            config = write_agent_config(paths, i, local.agents_url, holder, machinery)
            argv = (*around.programs.agent, "--config", str(config))
            daemon = start_daemon(argv, agent_folder(paths, i) / "agent.log", paths.local)
            started.append(daemon)
            agents = list(local.agents) + [daemon] * (i - len(local.agents))
            agents[i - 1] = daemon
            local = replace(local, agents=tuple(agents))
            _write(local, paths)
        _await(local, around)
    except BaseException:
        end_daemons(started, around.limits.local_stop_s)
        raise
    return local


def _with_ports(local: LocalSet, around: Surroundings) -> LocalSet:
    """A dead coordinator's agents dial its old port. Who took it meanwhile keeps it: then all move."""
    if is_alive(local.coordinator) or all(_is_free(url) for url in (local.url, local.agents_url)):
        return local
    end_daemons(local.agents, around.limits.local_stop_s)
    return _new_set(local.n)


def _new_set(n: int) -> LocalSet:
    rest, agents = _free_ports()
    return LocalSet(url=f"http://127.0.0.1:{rest}", agents_url=f"http://127.0.0.1:{agents}", n=n)


def _await(local: LocalSet, around: Surroundings) -> None:
    client = local_client(around.paths, local, around.limits)
    until = time.monotonic() + around.limits.local_start_s
    waiting = "the coordinator does not answer"
    while time.monotonic() < until:
        _refuse_dead(local, around.paths)
        try:
            nodes = client.status().nodes
        except SparkdError as error:
            waiting = f"the coordinator does not answer yet ({error})"
        else:
            alive = [node.name for node in nodes if node.state == "alive"]
            if len(alive) >= local.n:
                return
            waiting = f"{len(alive)} of {local.n} agents have said hello"
        around.sleep(0.05)
    raise LocalSetFailed(
        f"the local set did not come to life in {around.limits.local_start_s:.0f} s: {waiting}; "
        f"its logs are below {around.paths.local}"
    )


def _refuse_dead(local: LocalSet, paths: Paths) -> None:
    logs = [("the local coordinator", paths.local / "coordinator.log")]
    logs += [(agent_name(i), agent_folder(paths, i) / "agent.log") for i in range(1, local.n + 1)]
    for daemon, (name, log) in zip(local.daemons, logs, strict=True):
        if not is_alive(daemon):
            raise LocalSetFailed(f"{name} ended at its start; {log} ends with:\n{_tail(log)}")


def _tail(log: Path, lines: int = 8) -> str:
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return "  (nothing)"
    return "\n".join(f"  {line}" for line in text.splitlines()[-lines:]) or "  (nothing)"


def _end(found: LocalSet, around: Surroundings) -> None:
    if is_alive(found.coordinator):
        try:
            status = local_client(around.paths, found, around.limits).status()
            write_private(around.paths.local / "last.json", msgspec.json.encode(status).decode())
        except SparkdError:
            pass  # It is only a courtesy to the next `down`; the records themselves are in the database.
    if left := end_daemons(found.daemons, around.limits.local_stop_s):
        raise LocalSetFailed(
            f"could not end the local set: still there: {', '.join(str(one.pid) for one in left)}"
        )
    (around.paths.local / "coordinator.json").unlink(missing_ok=True)


def _write(local: LocalSet, paths: Paths) -> None:
    write_private(paths.local / "coordinator.json", msgspec.json.format(msgspec.json.encode(local)).decode())


@contextmanager
def _locked(around: Surroundings) -> Iterator[None]:
    """One command at a time starts or ends the set; a second one waits for the first."""
    around.paths.local.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (around.paths.local / "lock").open("w") as lock:
        until = time.monotonic() + around.limits.local_start_s + 2 * around.limits.local_stop_s
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise LocalSetFailed("another sparkd is starting or ending the local set") from None
                around.sleep(0.1)
        yield


def _is_free(url: str) -> bool:
    try:
        socket.create_server(("127.0.0.1", int(url.rpartition(":")[2]))).close()
    except OSError:
        return False
    return True


def _free_ports() -> tuple[int, int]:
    """Two free loopback ports that no deployment of ours will want (`records/defaults.py`)."""
    ours = range(DEFAULTS.api_port_first, DEFAULTS.api_port_last + 1)
    meeting = range(DEFAULTS.rendezvous_port_first, DEFAULTS.rendezvous_port_last + 1)
    held: list[socket.socket] = []
    found: list[int] = []
    try:
        while len(found) < 2:
            held.append(socket.create_server(("127.0.0.1", 0)))
            port = held[-1].getsockname()[1]
            if port not in _NEVER and port not in ours and port not in meeting:
                found.append(port)
    finally:
        for one in held:
            one.close()
    return found[0], found[1]

"""The coordinator as a process: REST on one address, agents on another, until SIGTERM."""

import asyncio
import contextlib
import fcntl
import ipaddress
import json
import logging
import os
import secrets
import signal
import socket
import time
from pathlib import Path
from typing import Any

import uvicorn

from sparkd.clock import SystemClock
from sparkd.coordinator.agent_api import agent_app
from sparkd.coordinator.app import rest_app
from sparkd.coordinator.gathered import GatheredH11
from sparkd.coordinator.guard import App, Guard
from sparkd.coordinator.keys import KeyRing
from sparkd.coordinator.planner import make_planner
from sparkd.coordinator.reconciler import Reconciler
from sparkd.coordinator.store import Store, open_store
from sparkd.errors import Conflict, UsageError
from sparkd.fleet.nodes import Node
from sparkd.fleet.state import Fleet
from sparkd.gang import machine as gang_machine
from sparkd.private_file import write_private
from sparkd.records.defaults import DEFAULTS, Defaults

log = logging.getLogger("sparkd.coordinator")


def run(*, state_dir: Path, rest: str, agents: str, token_file: Path, limits: Defaults = DEFAULTS) -> None:
    """Serve in the foreground: REST on one HOST:PORT, agents on another.

    Raises UsageError for an address or a token that cannot be used, Conflict when another coordinator holds
    the state folder, StateCorrupt for a database that cannot be trusted.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _lock(state_dir):
        token = read_token(token_file)
        rest_socket, agents_socket = _bind(rest), _bind(agents)
        asyncio.run(_serve(state_dir, rest_socket, agents_socket, token, limits))


@contextlib.contextmanager
def _lock(state_dir: Path) -> Any:
    descriptor = os.open(state_dir / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise Conflict(f"another coordinator runs on {state_dir}") from None
    try:
        yield
    finally:
        os.close(descriptor)


def read_token(token_file: Path) -> str:
    """A bearer token from its file. Raises UsageError when others may read the file, or it is empty."""
    try:
        mode = token_file.stat().st_mode
        token = token_file.read_text().strip()
    except OSError as error:
        raise UsageError(f"the token file {token_file} cannot be read: {error.strerror}") from error
    if mode & 0o077:
        raise UsageError(f"the token file {token_file} may be read by others: chmod 600 {token_file}")
    if not token:
        raise UsageError(f"the token file {token_file} is empty")
    return token


def _bind(address: str) -> socket.socket:
    name, _, port = address.rpartition(":")
    host = name.strip("[]")
    if not port.isdigit() or not host:
        raise UsageError(f"{address!r} is no HOST:PORT")
    if not _is_loopback(host):
        raise UsageError(
            f"{address} can be reached from other machines, and there is no TLS yet: tokens would cross the "
            f"network in the clear; bind 127.0.0.1:{port}"
        )
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, int(port)), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        raise UsageError(f"cannot listen on {address}: {error}") from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_holder(state_dir: Path) -> tuple[str, dict[str, str]]:
    """The holder and the enrolled nodes (id -> name); both lie outside the database. Minted once."""
    path = state_dir / "holder.json"
    if not path.exists():
        holder = secrets.token_hex(8)
        write_private(path, json.dumps({"holder": holder, "nodes": []}))
        return holder, {}
    body = json.loads(path.read_text())
    return str(body["holder"]), {str(n["id"]): str(n["name"]) for n in body.get("nodes", [])}


def load_fleet(store: Store, state_dir: Path, clock: SystemClock, keys: KeyRing) -> Fleet:
    """Begin a new term, with every deployment as the last life left it."""
    holder, enrolled = read_holder(state_dir)
    instance = secrets.token_hex(6)
    term = store.take_term(instance)
    now = clock.now()
    gangs = {r.name: gang_machine.restore(keys.complete(r), now) for r in store.records()}
    drained = store.drained()
    lives = store.lives()
    return Fleet(
        lives=lives,
        old=len(lives) == 1,
        drained=drained,
        holder=holder,
        term=term,
        instance=instance,
        started=now.mono,
        enrolled=frozenset(enrolled),
        nodes={i: Node(i, name, drained=i in drained) for i, name in enrolled.items()},
        gangs=gangs,
        planner=make_planner(keys),
    )


async def _serve(
    state_dir: Path, rest: socket.socket, agents: socket.socket, token: str, limits: Defaults
) -> None:
    clock = SystemClock()
    stamp = time.strftime("%Y%m%dT%H%M%S")
    store, lost = open_store(state_dir / "coordinator.sqlite", stamp)
    stop = asyncio.Event()
    superseded: list[str] = []

    def on_superseded(reason: str) -> None:
        superseded.append(reason)
        stop.set()

    keys = KeyRing(state_dir / "keys")
    fleet = load_fleet(store, state_dir, clock, keys)
    reconciler = Reconciler(fleet, store, clock, keys, limits=limits, on_superseded=on_superseded)
    log.info("term %d, instance %s, %d deployments", fleet.term, fleet.instance, len(fleet.gangs))
    if lost is not None:
        reconciler.announce(lost)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    open_paths = frozenset({"/healthz"})
    servers = [
        _server(Guard(rest_app(reconciler, store), token, limits, open_paths=open_paths), limits),
        _server(Guard(agent_app(reconciler), token, limits), limits),
    ]
    async with asyncio.TaskGroup() as group:
        ticking = group.create_task(reconciler.run())
        for server, listener in zip(servers, (rest, agents), strict=True):
            group.create_task(server.serve(sockets=[listener]))
        await stop.wait()
        reconciler.close()
        for server in servers:
            server.should_exit = True
        ticking.cancel()
    store.close()
    if superseded:
        raise Conflict(f"this coordinator ends: {superseded[0]}")


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: one handler stops both servers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


def _server(app: App, limits: Defaults) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        http=GatheredH11,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=int(limits.document_poll_s * 2),
        timeout_graceful_shutdown=2,
    )
    return _Server(config)

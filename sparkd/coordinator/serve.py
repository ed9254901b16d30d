"""The coordinator as a process: REST on one address, agents on another, until SIGTERM."""

import asyncio
import contextlib
import fcntl
import logging
import os
import secrets
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkd.clock import SystemClock
from sparkd.coordinator.agent_api import agent_app
from sparkd.coordinator.app import rest_app
from sparkd.coordinator.guard import Guard, rest_gate, shared_token_gate
from sparkd.coordinator.incidents import IncidentFiles
from sparkd.coordinator.keys import KeyRing
from sparkd.coordinator.listen import (
    allow_descriptors,
    bind,
    bind_unix,
    is_loopback,
    make_server,
)
from sparkd.coordinator.planner import make_planner
from sparkd.coordinator.reconciler import Reconciler
from sparkd.coordinator.store import Store, open_store
from sparkd.coordinator.tokens import Tokens, read_tokens
from sparkd.enrol.roster import LiveRoster, Roster, has_authority, read_roster
from sparkd.errors import Conflict, UsageError
from sparkd.fleet.nodes import Node
from sparkd.fleet.state import Fleet
from sparkd.gang import machine as gang_machine
from sparkd.notify import Notifier
from sparkd.records.defaults import DEFAULTS, Defaults

if TYPE_CHECKING:
    from sparkd.coordinator.registry import Registry

log = logging.getLogger("sparkd.coordinator")


@dataclass(frozen=True, slots=True)
class _Sockets:
    rest: socket.socket
    agents: socket.socket
    unix: socket.socket | None


@dataclass(frozen=True, slots=True)
class _Opened:
    store: Store
    lost: str | None
    """Why the database was begun anew."""
    sockets: _Sockets


def run(
    *,
    state_dir: Path,
    rest: str,
    agents: str,
    token_file: Path | None = None,
    rest_socket: Path | None = None,
    advertise: tuple[str, ...] = (),
    limits: Defaults = DEFAULTS,
) -> None:
    """Serve in the foreground: REST on one HOST:PORT and, if wanted, on a unix socket, agents on another.

    A state folder with a certificate authority (`sparkd init`) makes the agents' port ask for certificates
    and REST speak TLS off loopback. Without one everything stays on loopback, and agents share the token of
    `token_file`, which is also good for REST. `advertise`: HOST:PORT where agents find us, if not at
    `agents`.
    Raises UsageError for an address or a token that cannot be used, Conflict when another coordinator holds
    the state folder, StateCorrupt for a database, a roster or an authority that cannot be trusted.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    is_secure = has_authority(state_dir)
    with locked(state_dir):
        token = read_token(token_file) if token_file is not None else None
        if token is None and not is_secure:
            raise UsageError(
                f"{state_dir} has no certificate authority: run `sparkd init`, or name a --token-file"
            )
        if token is None and not read_tokens(state_dir):
            raise UsageError(
                f"{state_dir} holds no token for anybody: `sparkd coordinator token NAME` makes one"
            )
        allow_descriptors(limits)
        store, lost = _open_database(state_dir, is_secure=is_secure, limits=limits)
        sockets = _Sockets(
            bind(rest, has_tls=is_secure),
            bind(agents, has_tls=is_secure),
            bind_unix(rest_socket) if rest_socket is not None else None,
        )
        opened = _Opened(store, lost, sockets)
        asyncio.run(_serve(state_dir, opened, token, advertise or (agents,), limits))


def _open_database(state_dir: Path, *, is_secure: bool, limits: Defaults) -> tuple[Store, str | None]:
    """The database, and why it was begun anew; then only once the lease of the last life is over."""
    store, lost = open_store(state_dir / "coordinator.sqlite", time.strftime("%Y%m%dT%H%M%S"))
    if lost is not None or (is_secure and read_roster(state_dir).names and not store.lives()):
        # Nodes of an earlier life of which nothing is known: whoever heard from it less than a lease ago
        # would take this one for a second coordinator and end it, again and again until the lease is over.
        log.info("an earlier life is not on record: waiting %g s, as long as its lease", limits.lease_s)
        time.sleep(limits.lease_s)
    return store, lost


@contextlib.contextmanager
def locked(state_dir: Path) -> Any:
    """Held by one coordinator at a time. Raises Conflict when another holds it."""
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


def load_fleet(store: Store, roster: Roster, clock: SystemClock, keys: KeyRing) -> Fleet:
    """Begin a new term, with every deployment as the last life left it."""
    enrolled = roster.names
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
        holder=roster.holder,
        term=term,
        instance=instance,
        started=now.mono,
        enrolled=frozenset(enrolled),
        nodes={i: Node(i, name, drained=i in drained) for i, name in enrolled.items()},
        gangs=gangs,
        planner=make_planner(keys),
    )


async def _serve(
    state_dir: Path, opened: _Opened, token: str | None, addresses: tuple[str, ...], limits: Defaults
) -> None:
    store, sockets = opened.store, opened.sockets
    clock = SystemClock()
    stop = asyncio.Event()
    superseded: list[str] = []

    def on_superseded(reason: str) -> None:
        superseded.append(reason)
        stop.set()

    keys = KeyRing(state_dir / "keys")
    roster = LiveRoster(state_dir)
    secure = _Secure(state_dir, roster, clock, limits) if has_authority(state_dir) else None
    fleet = load_fleet(store, roster.now, clock, keys)
    reconciler = Reconciler(
        fleet,
        store,
        clock,
        keys,
        limits=limits,
        on_superseded=on_superseded,
        certificates=secure.entrance.verdicts if secure else None,
        incident_files=IncidentFiles(state_dir / "incidents"),
    )
    log.info("term %d, instance %s, %d deployments", fleet.term, fleet.instance, len(fleet.gangs))
    if opened.lost is not None:
        reconciler.announce(opened.lost)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    tokens = Tokens(state_dir, {token: "admin"} if token is not None else {})
    registry = secure.registry(reconciler, addresses) if secure else None
    people = Guard(rest_app(reconciler, store, registry), rest_gate(tokens), limits)
    if secure is not None:
        agents = Guard(agent_app(reconciler, secure.entrance), secure.entrance.gate, limits)
    else:
        agents = Guard(agent_app(reconciler), shared_token_gate(token or ""), limits)
    off_loopback = not is_loopback(sockets.rest.getsockname()[0])
    servers = [
        (make_server(agents, limits, secure.own.agents if secure else None), sockets.agents),
        (make_server(people, limits, secure.own.people if secure and off_loopback else None), sockets.rest),
    ]
    if sockets.unix is not None:
        servers.append((make_server(people, limits), sockets.unix))
    notifier = Notifier(os.environ)
    async with asyncio.TaskGroup() as group:
        work = [group.create_task(reconciler.run())]
        if secure is not None:
            work.append(group.create_task(secure.keep_fresh()))
        for server, listener in servers:
            group.create_task(server.serve(sockets=[listener]))
        while not all(server.started for server, _ in servers):  # noqa: ASYNC110 - it tells by a flag only
            await asyncio.sleep(limits.settle_poll_s)
        notifier.ready(reconciler.in_words())
        work.append(group.create_task(notifier.keep(well=reconciler.is_well, status=reconciler.in_words)))
        await stop.wait()
        notifier.stopping()
        reconciler.close()
        for server, _ in servers:
            server.should_exit = True
        for task in work:
            task.cancel()
    notifier.close()
    store.close()
    if superseded:
        raise Conflict(f"this coordinator ends: {superseded[0]}")


class _Secure:
    """What a coordinator with a certificate authority has besides."""

    def __init__(self, state_dir: Path, roster: LiveRoster, clock: SystemClock, limits: Defaults) -> None:
        # They weigh 15 MiB: a local set has no use for them.
        try:
            from sparkd.coordinator.entrance import Entrance  # noqa: PLC0415
            from sparkd.coordinator.own_certificate import OwnCertificate  # noqa: PLC0415
            from sparkd.enrol.authority import load_authority  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise UsageError(f"certificates need {error.name}: install sparkd[enrol]") from error
        authority = load_authority(state_dir)
        self.own = OwnCertificate(authority, state_dir, clock.now().wall, limits)
        self.entrance = Entrance(authority, roster, clock, limits)
        self._authority = authority
        self._folder = state_dir
        self._roster = roster
        self._clock = clock
        self._look_s = limits.certificate_look_s

    def registry(self, reconciler: Reconciler, addresses: tuple[str, ...]) -> "Registry":
        from sparkd.coordinator.registry import Registry  # noqa: PLC0415  as above

        return Registry(
            self._folder,
            self._authority,
            self._roster,
            reconciler=reconciler,
            clock=self._clock,
            addresses=addresses,
        )

    async def keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            self.own.renew_if_due(self._clock.now().wall)

"""Sockets, and the servers on them."""

import asyncio
import contextlib
import ipaddress
import logging
import os
import resource
import shutil
import socket
import ssl
from pathlib import Path
from typing import Any, Final

import uvicorn

from sparkd.coordinator.bounded import BoundedH11
from sparkd.coordinator.guard import App
from sparkd.coordinator.guests import Guests
from sparkd.coordinator.peer import Peer
from sparkd.coordinator.secured import Refusals, Secured, Turns
from sparkd.errors import UsageError
from sparkd.records.defaults import Defaults

GROUP: Final = "sparkd"
"""Whose members reach the REST API's unix socket."""
_BACKLOG: Final = 1024


def bind(address: str, *, has_tls: bool) -> socket.socket:
    """Listen on HOST:PORT. Raises UsageError, also for an address off loopback without TLS."""
    name, _, port = address.rpartition(":")
    host = name.strip("[]")
    if not port.isdigit() or not host:
        raise UsageError(f"{address!r} is no HOST:PORT")
    if not has_tls and not is_loopback(host):
        raise UsageError(
            f"{address} can be reached from other machines, and there is no TLS without certificates: tokens "
            f"would cross the network in the clear; run `sparkd init` first, or bind 127.0.0.1:{port}"
        )
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, int(port)), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        raise UsageError(f"cannot listen on {address}: {error}") from error


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bind_unix(path: Path) -> socket.socket:
    """Listen on a unix socket of mode 0660 for the group `sparkd`, where there is one. Raises UsageError.

    One that a dead coordinator left is replaced: the caller holds the lock of the state folder.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        old = os.umask(0o117)
        try:
            listener.bind(str(path))
        finally:
            os.umask(old)
        # No such group, or we are not in it: then it is for our own user and group.
        with contextlib.suppress(LookupError, PermissionError):
            shutil.chown(path, group=GROUP)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise UsageError(f"cannot listen on {path}: {error}") from error
    return listener


def allow_descriptors(limits: Defaults) -> None:
    """As many open files as connections need, as far as the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * limits.connections + 256
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Server(uvicorn.Server):
    """uvicorn without its own signal handlers: one handler stops all servers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


def make_server(app: App, limits: Defaults, context: ssl.SSLContext | None = None) -> Server:
    """HTTP with bounds, over TLS if there is a context for it."""
    guests, refusals, turns = Guests(limits), Refusals(), Turns()

    def connect(**uvicorns: Any) -> asyncio.Protocol:
        if context is None:
            return BoundedH11(limits=limits, guests=guests, peer=None, **uvicorns)

        def make_http(peer: Peer | None) -> BoundedH11:
            return BoundedH11(limits=limits, guests=None, peer=peer, **uvicorns)

        return Secured(context, make_http, guests=guests, refusals=refusals, turns=turns, limits=limits)

    # What strangers send is answered, not written down.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    # `http` is named as a class, and is only ever called.
    config = uvicorn.Config(
        app,
        http=connect,  # type: ignore[arg-type]
        h11_max_incomplete_event_size=limits.head_bytes,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=int(limits.document_poll_s * 2),
        timeout_graceful_shutdown=2,
    )
    return Server(config)

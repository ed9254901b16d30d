"""Reaching and entering a host as ssh does: strict host keys, then keys, then passwords.

A host key is judged before anything of ours is sent. Passwords live in memory and in the encrypted channel
only.
"""

import logging
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from pathlib import Path
from typing import Protocol

import paramiko
from paramiko.pkey import PublicBlob

from sparkd.enrol.key_file import LOCKED, read_key
from sparkd.enrol.known_hosts import (
    KnownKey,
    Trust,
    fingerprint,
    host_label,
    judge,
    keys_of,
    read_known_hosts,
    remember,
)
from sparkd.enrol.target import Route
from sparkd.errors import HostKeyRefused, LoginFailed, NotReached
from sparkd.records.defaults import DEFAULTS

PASSWORD_TRIES = 3


class Asker(Protocol):
    """A person, asked one thing at a time. Called from many threads."""

    def confirm(self, question: str) -> bool:
        """False also when there is nobody to ask."""

    def secret(self, question: str) -> str | None:
        """A password, not shown while it is typed; None when there is nobody to ask."""


class Login:
    """Opens transports for one command: what a person typed or confirmed once is not asked twice."""

    def __init__(self, asker: Asker, *, accept_new: bool = False) -> None:
        # What it would say is in our errors already, in better words.
        logging.getLogger("paramiko").setLevel(logging.CRITICAL)
        self._asker = asker
        self._accept_new = accept_new
        self._lock = threading.Lock()
        self._unlocked: dict[Path, paramiko.PKey | None] = {}

    def open(self, route: Route) -> "Entered":
        """Raises NotReached, HostKeyRefused or LoginFailed, each with what to do."""
        before = self.open(route.jump) if route.jump else None
        try:
            transport = self._start(route, before)
        except BaseException:
            if before:
                before.close()
            raise
        entered = Entered(route, transport, before)
        try:
            self._check_host(route, transport)
            entered.password = self._log_in(route, transport)
        except paramiko.SSHException as error:
            entered.close()
            raise LoginFailed(f"{_where(route)}: {error}") from error
        except BaseException:
            entered.close()
            raise
        return entered

    def _start(self, route: Route, before: "Entered | None") -> paramiko.Transport:
        where = f"{route.host} port {route.port}"
        try:
            if before:
                link = before.transport.open_channel(
                    "direct-tcpip", (route.host, route.port), ("", 0), timeout=DEFAULTS.ssh_connect_s
                )
                transport = paramiko.Transport(link)
            else:
                place = (route.host, route.port)
                transport = paramiko.Transport(socket.create_connection(place, DEFAULTS.ssh_connect_s))
        except (OSError, paramiko.SSHException) as error:
            raise NotReached(f"{route.name}: no connection to {where}: {_reason(error)}") from error
        transport.daemon = True
        transport.banner_timeout = transport.auth_timeout = DEFAULTS.ssh_login_s
        try:
            self._prefer_known(route, transport)
            transport.start_client(timeout=DEFAULTS.ssh_login_s)
        except (OSError, EOFError, paramiko.SSHException) as error:
            transport.close()
            raise NotReached(f"{route.name}: {where} does not speak SSH as we do: {error}") from error
        return transport

    def _prefer_known(self, route: Route, transport: paramiko.Transport) -> None:
        """Ask for the kind of key that is known: a host has several, and another kind would look changed."""
        kinds = {entry.kind for entry in keys_of(read_known_hosts(route.known_hosts), _label(route))}
        if "ssh-rsa" in kinds:
            kinds |= {"rsa-sha2-256", "rsa-sha2-512"}
        options = transport.get_security_options()
        options.key_types = sorted(options.key_types, key=lambda kind: kind not in kinds)

    def _check_host(self, route: Route, transport: paramiko.Transport) -> None:
        key = transport.get_remote_server_key()
        kind, body, label = key.get_name(), key.asbytes(), _label(route)
        with self._lock:
            found = judge(read_known_hosts(route.known_hosts), label, kind, body)
            if found.trust == "known":
                return
            shown = f"{kind} {fingerprint(body)}"
            if found.entry:
                raise HostKeyRefused(f"{route.name}: {_distrust(found.trust, label, shown, found.entry)}")
            question = f"{route.name}: {label} is not known yet; its key is {shown}. Is that the machine?"
            if not self._accept_new and not self._asker.confirm(question):
                raise HostKeyRefused(
                    f"{route.name}: the host key of {label} is not known: {shown}. Compare it on the machine "
                    f"itself (`ssh-keygen -lf /etc/ssh/ssh_host_{_short(kind)}_key.pub`), then say yes "
                    "here, or pass --accept-new to trust hosts that were never seen"
                )
            if route.known_hosts:
                remember(route.known_hosts[0], label, kind, body)

    # Logging in. ----------------------------------------------------------------------------------------

    def _log_in(self, route: Route, transport: paramiko.Transport) -> str | None:
        """Gives the password that opened it, if one did: sudo usually wants the same."""
        tried: list[str] = []
        try:
            transport.auth_none(route.user)
        except paramiko.BadAuthenticationType as error:
            allowed = error.allowed_types
        else:
            return None
        if "publickey" in allowed:
            with closing(self._keys(route)) as keys:
                for what, key in keys:
                    tried.append(what)
                    with suppress(paramiko.AuthenticationException):
                        if not transport.auth_publickey(route.user, key):
                            return None
                    if not transport.is_active():
                        raise LoginFailed(f"{_where(route)}: it hung up after {', '.join(tried)}")
        if "password" in allowed or "keyboard-interactive" in allowed:
            tried.append("password")
            if password := self._by_password(route, transport, allowed):
                return password
        raise LoginFailed(
            f"{_where(route)}: not let in; tried: {', '.join(tried) or 'nothing'}; it takes: "
            f"{', '.join(allowed)}. `ssh-copy-id {route.user}@{route.name}` puts your key there"
        )

    def _by_password(self, route: Route, transport: paramiko.Transport, allowed: list[str]) -> str | None:
        for _ in range(PASSWORD_TRIES):
            password = self._ask_secret(f"Password of {_where(route)}")
            if password is None:
                return None
            try:
                if "password" in allowed:
                    left = transport.auth_password(route.user, password, fallback=False)
                else:
                    left = transport.auth_interactive(route.user, _answering(password))
                if not left:
                    return password
            except paramiko.AuthenticationException:
                if not transport.is_active():
                    raise
        return None

    def _keys(self, route: Route) -> Generator[tuple[str, paramiko.PKey]]:
        """Keys of the ssh agent first, those of the configuration before others; then files."""
        wanted = {body for file in route.keys if (body := _public(file))}
        with suppress(paramiko.SSHException), closing(paramiko.Agent()) as agent:
            held = agent.get_keys()
            first = [key for key in held if key.asbytes() in wanted]
            others = [] if route.only_these else [key for key in held if key.asbytes() not in wanted]
            for key in (*first, *others):
                yield f"a {key.get_name()} key of the ssh agent", key
        for file in route.keys:
            if file.is_file() and (loaded := self._load(file)):
                yield str(file), loaded

    def _load(self, file: Path) -> paramiko.PKey | None:
        """A key file, unlocked with a passphrase if it needs one; asked for once in all."""
        with self._lock:
            if file not in self._unlocked:
                key = read_key(file)
                if key is LOCKED:
                    passphrase = self._asker.secret(f"Passphrase of {file}")
                    key = read_key(file, passphrase) if passphrase else None
                self._unlocked[file] = key if isinstance(key, paramiko.PKey) else None
            return self._unlocked[file]

    def _ask_secret(self, question: str) -> str | None:
        with self._lock:
            return self._asker.secret(question)


class Entered:
    """An open, authenticated connection; `password` is what opened it, if one did."""

    def __init__(self, route: Route, transport: paramiko.Transport, before: "Entered | None") -> None:
        self.route = route
        self.transport = transport
        self.password: str | None = None
        self._before = before

    def close(self) -> None:
        self.transport.close()
        if self._before:
            self._before.close()


def _distrust(trust: Trust, label: str, shown: str, entry: KnownKey) -> str:
    if trust == "revoked":
        return f"its host key {shown} is marked @revoked at {entry.where}"
    return (
        f"THE HOST KEY HAS CHANGED: {label} shows {shown}, but {entry.where} holds {entry.kind} "
        f"{fingerprint(entry.key)}. Either the machine was set up anew, or somebody stands between. If you "
        f"know that it was set up anew: `ssh-keygen -R '{label}' -f {entry.file}`, and try again"
    )


def _answering(password: str) -> Callable[[str, str, list[tuple[str, bool]]], list[str]]:
    """Questions whose answer is not shown are for the password; others get nothing."""
    return lambda _title, _text, fields: ["" if shown else password for _, shown in fields]


def _public(file: Path) -> bytes | None:
    """The public half beside a key file."""
    try:
        words = file.with_name(file.name + ".pub").read_text().split()
        return bytes(PublicBlob.from_string(" ".join(words[:2])).key_blob)
    except (OSError, ValueError, IndexError):
        return None


def _label(route: Route) -> str:
    return route.label or host_label(route.host, route.port)


def _short(kind: str) -> str:
    return "rsa" if "rsa" in kind else "ecdsa" if "ecdsa" in kind else "ed25519"


def _where(route: Route) -> str:
    return f"{route.user}@{route.name}"


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {DEFAULTS.ssh_connect_s:g} s"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__

"""A way onto one machine: SSH, root by sudo if need be; or this machine itself."""

import os
import pwd
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sparkd.enrol.conversation import Conversation, converse_here, converse_over_ssh
from sparkd.enrol.ssh import Asker, Entered, Login
from sparkd.enrol.target import Route


@dataclass(frozen=True, slots=True)
class Place:
    """Where things lie on a node. Tests have a folder of their own, a stand-in for systemctl, and no root."""

    root: str = "/"
    systemctl: str = "systemctl"
    become_root: bool = True


@dataclass(frozen=True, slots=True)
class OnNode:
    """An open conversation, as root; `user` and `home` are of the person who logged in."""

    talk: Conversation
    user: str
    home: str

    def ask(self, verb: str, blob: bytes = b"", **args: Any) -> dict[str, Any]:
        """Raises EnrolmentFailed."""
        return self.talk.ask(verb, blob, **args)


class Host:
    """One machine by its name. `open` is used as a context; leaving it ends everything on the node."""

    name: str

    @contextmanager
    def open(self) -> Iterator[OnNode]:
        """Raises EnrolmentFailed and what is below it."""
        raise NotImplementedError


class SshHost(Host):
    def __init__(self, route: Route, login: Login, asker: Asker, place: Place) -> None:
        self.name = route.name
        self._route = route
        self._login = login
        self._sudo = SudoPasswords(asker, route)
        self._place = place

    @contextmanager
    def open(self) -> Iterator[OnNode]:
        entered = self._login.open(self._route)
        try:
            yield self._become_root(entered)
        finally:
            entered.close()

    def _become_root(self, entered: Entered) -> OnNode:
        root, systemctl = self._place.root, self._place.systemctl
        talk = converse_over_ssh(entered, sudo=False)
        me = talk.ask("begin", root=root, systemctl=systemctl)
        if me["uid"] != 0 and self._place.become_root:
            talk.close()
            talk = converse_over_ssh(entered, sudo=True, password=self._sudo.after(entered.password))
            talk.ask("begin", root=root, systemctl=systemctl)
        return OnNode(talk, me["user"], me["home"])


class ThisHost(Host):
    """Without SSH. `home` is of the person for whom we run: with sudo not root's."""

    def __init__(self, name: str, user: str, home: str, python: str, place: Place) -> None:
        self.name = name
        self._user = user
        self._home = home
        self._python = python
        self._place = place

    @contextmanager
    def open(self) -> Iterator[OnNode]:
        talk = converse_here(self.name, (self._python,))
        try:
            talk.ask("begin", root=self._place.root, systemctl=self._place.systemctl)
            yield OnNode(talk, self._user, self._home)
        finally:
            talk.close()


class SudoPasswords:
    """What is said when sudo asks: the password that opened the login, then what a person types."""

    def __init__(self, asker: Asker, route: Route) -> None:
        self._asker = asker
        self._route = route
        self._right: str | None = None
        self._lock = threading.Lock()

    def after(self, login: str | None) -> Callable[[int], str | None]:
        first = [word for word in (self._right, login) if word]

        def give(number: int) -> str | None:
            if number < len(first):
                return first[number]
            with self._lock:
                again = "Wrong. " if number else ""
                self._right = self._asker.secret(
                    f"{again}sudo password of {self._route.user}@{self._route.name}"
                )
                return self._right

        return give


def login_name() -> tuple[str, str]:
    """User and home for whom we run: who called sudo, if somebody did."""
    uid = int(os.environ.get("SUDO_UID") or os.getuid())
    entry = pwd.getpwuid(uid)
    return entry.pw_name, entry.pw_dir

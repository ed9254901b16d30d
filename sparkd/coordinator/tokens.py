"""Bearer tokens of the REST API: `tokens.json` beside the CA holds a digest of each, never a token.

A token is 256 random bits, so that a plain SHA-256 of it gives nothing away and needs no salt.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec

from sparkd.errors import Conflict, NotFound, StateCorrupt
from sparkd.private_file import changing, write_private

Scope = Literal["read", "operate", "admin"]
"""Each includes those before it. `operate`: deployments, drain and resume. `admin`: who belongs here."""

FILE: Final = "tokens.json"
_WIDTH: Final = {scope: width for width, scope in enumerate(get_args(Scope))}


@dataclass(frozen=True, slots=True)
class StoredToken:
    name: str
    """For people: whose it is."""
    scope: Scope
    sha256: str
    at: float
    """Wall clock, seconds since 1970."""


def allows(held: Scope, wanted: Scope) -> bool:
    return _WIDTH[held] >= _WIDTH[wanted]


def mint_token(folder: Path, name: str, scope: Scope, at: float | None = None) -> str:
    """A new token, which nobody can read again. Raises Conflict for a name in use, StateCorrupt."""
    token = secrets.token_urlsafe(32)
    stored = StoredToken(name, scope, _digest(token.encode()), time.time() if at is None else at)

    def add(known: tuple[StoredToken, ...]) -> tuple[StoredToken, ...]:
        if any(one.name == name for one in known):
            raise Conflict(f"a token called {name} exists; revoke it first")
        return (*known, stored)

    _change(folder, add)
    return token


def revoke_token(folder: Path, name: str) -> None:
    """Counts from the next request on. Raises NotFound, StateCorrupt."""

    def drop(known: tuple[StoredToken, ...]) -> tuple[StoredToken, ...]:
        rest = tuple(one for one in known if one.name != name)
        if len(rest) == len(known):
            there = ", ".join(one.name for one in known) or "none"
            raise NotFound(f"no token is called {name} (known: {there})")
        return rest

    _change(folder, drop)


def read_tokens(folder: Path) -> tuple[StoredToken, ...]:
    """Raises StateCorrupt."""
    file = folder / FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=tuple[StoredToken, ...])
    except FileNotFoundError:
        return ()
    except msgspec.MsgspecError as error:
        raise StateCorrupt(f"{file} is no list of tokens: {error}") from error


class Tokens:
    """What a running coordinator accepts: the file as it is now, and tokens that it was started with."""

    def __init__(self, folder: Path, given: dict[str, Scope] | None = None) -> None:
        self._folder = folder
        self._given = {_digest(token.encode()): scope for token, scope in (given or {}).items()}
        self._read: dict[str, Scope] = {}
        self._stamp: tuple[int, int] | None = None

    def scope_of(self, token: bytes) -> Scope | None:
        """None for a token that nobody minted, or that was revoked."""
        self._look()
        asked = _digest(token)
        found: Scope | None = None
        for digest, scope in (*self._given.items(), *self._read.items()):
            if hmac.compare_digest(digest, asked):
                found = scope
        return found

    def _look(self) -> None:
        try:
            found = (self._folder / FILE).stat()
            stamp = (found.st_mtime_ns, found.st_ino)
        except FileNotFoundError:
            stamp = None
        if stamp != self._stamp:
            self._read = {one.sha256: one.scope for one in read_tokens(self._folder)}
            self._stamp = stamp


def _digest(token: bytes) -> str:
    return hashlib.sha256(token).hexdigest()


def _change(folder: Path, change: Callable[[tuple[StoredToken, ...]], tuple[StoredToken, ...]]) -> None:
    with changing(folder / FILE):
        new = change(read_tokens(folder))
        write_private(folder / FILE, msgspec.json.format(msgspec.json.encode(new)).decode() + "\n")

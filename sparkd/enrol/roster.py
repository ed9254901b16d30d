"""Who belongs to a holder: `holder.json`, beside the CA and outside the database (design §11).

The holder is minted once. A node that was removed leaves its id behind: ids are never used twice, and a
certificate that still names one is refused.
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from sparkd.errors import Conflict, NotFound, StateCorrupt, UsageError
from sparkd.private_file import changing, write_private
from sparkd.records.names import NODE_ID

FILE = "holder.json"
AUTHORITY_KEY = "ca.key"
"""Beside it, where there is a certificate authority (`authority.py`)."""


@dataclass(frozen=True, slots=True)
class EnrolledNode:
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class RevokedNode:
    id: str
    name: str
    at: float
    """Wall clock, seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Roster:
    holder: str
    nodes: tuple[EnrolledNode, ...] = ()
    revoked: tuple[RevokedNode, ...] = ()

    @property
    def names(self) -> dict[str, str]:
        """Of the enrolled nodes: id -> name."""
        return {node.id: node.name for node in self.nodes}

    def is_revoked(self, node_id: str) -> bool:
        return any(node.id == node_id for node in self.revoked)

    def with_node(self, node_id: str, name: str) -> "Roster":
        """Enrolled, or enrolled anew under the same id and name.

        Raises UsageError for an id that no certificate may carry, Conflict for a name that another node has
        and for a revoked id.
        """
        if not NODE_ID.fullmatch(node_id):
            raise UsageError(f"{node_id!r} is no node id: letters, digits and inner . _ -")
        if self.is_revoked(node_id):
            raise Conflict(f"the id {node_id} was removed; a node that comes back gets a new one")
        if any(node.name == name and node.id != node_id for node in self.nodes):
            raise Conflict(f"a node called {name} is enrolled already")
        others = tuple(node for node in self.nodes if node.id != node_id)
        return replace(self, nodes=(*others, EnrolledNode(node_id, name)))

    def without_node(self, node_id: str, at: float) -> "Roster":
        """The node removed and its id revoked for ever. Raises NotFound."""
        found = next((node for node in self.nodes if node.id == node_id), None)
        if found is None:
            raise NotFound(f"no node with the id {node_id} is enrolled")
        others = tuple(node for node in self.nodes if node.id != node_id)
        return replace(self, nodes=others, revoked=(*self.revoked, RevokedNode(found.id, found.name, at)))


def has_authority(folder: Path) -> bool:
    return (folder / AUTHORITY_KEY).exists()


def mint_node_id() -> str:
    return secrets.token_hex(8)


def read_roster(folder: Path) -> Roster:
    """What `folder` holds; a holder is minted, and written, where there is none.

    Raises StateCorrupt, also for an authority without its list: nodes obey the holder that it names, and a
    revoked node would be let in again.
    """
    file = folder / FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=Roster)
    except FileNotFoundError:
        if has_authority(folder):
            raise StateCorrupt(f"{file} is missing beside {AUTHORITY_KEY}: restore a backup") from None
        return change_roster(folder, lambda roster: roster)
    except msgspec.MsgspecError as error:
        raise StateCorrupt(f"{file} is not a list of enrolled nodes: {error}") from error


def change_roster(folder: Path, change: Callable[[Roster], Roster]) -> Roster:
    """Read, change, write whole and durably; one process at a time. Gives what was written."""
    with changing(folder / FILE):
        known = read_roster(folder) if (folder / FILE).exists() else Roster(holder=secrets.token_hex(8))
        new = change(known)
        write_private(folder / FILE, msgspec.json.format(msgspec.json.encode(new)).decode() + "\n")
    return new


def enrol_node(folder: Path, node_id: str, name: str) -> Roster:
    """Raises as `Roster.with_node`."""
    return change_roster(folder, lambda roster: roster.with_node(node_id, name))


def revoke_node(folder: Path, node_id: str, at: float | None = None) -> Roster:
    """Raises as `Roster.without_node`. `at`: wall clock, now if not given."""
    when = time.time() if at is None else at
    return change_roster(folder, lambda roster: roster.without_node(node_id, when))


class LiveRoster:
    """The list as it is now: whoever changes it, the next request sees it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stamp = (0, 0)
        self._roster = read_roster(folder)

    @property
    def now(self) -> Roster:
        """Raises StateCorrupt, also when it is gone: then nobody comes in."""
        try:
            found = (self._folder / FILE).stat()
        except OSError as error:
            raise StateCorrupt(f"the list of enrolled nodes cannot be read: {error}") from error
        stamp = (found.st_mtime_ns, found.st_ino)
        if stamp != self._stamp:
            self._roster, self._stamp = read_roster(self._folder), stamp
        return self._roster

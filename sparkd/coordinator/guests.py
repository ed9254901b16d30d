"""Who is connected to one server: how many in all, how many from one address, and who has to make room.

A connection is *waiting* until a whole request head has come over it. Whoever opens many and says nothing
makes room for the next one, oldest first: so a stranger's silence never keeps a good client out.
"""

from typing import Protocol

from sparkd.records.defaults import Defaults


class Guest(Protocol):
    @property
    def peer(self) -> str:
        """The address it came from; empty for a unix socket."""

    @property
    def is_waiting(self) -> bool: ...

    def drop(self) -> None:
        """Close it at once."""


class Guests:
    def __init__(self, limits: Defaults) -> None:
        self._limits = limits
        self._all: dict[Guest, None] = {}
        """In the order in which they came."""
        self._by_peer: dict[str, dict[Guest, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def enter(self, guest: Guest) -> bool:
        """False when there is no room, and nobody who could make some: then the guest has to go."""
        limits = self._limits
        neighbours = self._by_peer.get(guest.peer, {})
        self._make_room(neighbours, limits.connections_per_peer, limits.connections_waiting_per_peer)
        self._make_room(self._all, limits.connections, limits.connections_waiting)
        if len(neighbours) >= limits.connections_per_peer or len(self._all) >= limits.connections:
            return False
        self._all[guest] = None
        self._by_peer.setdefault(guest.peer, {})[guest] = None
        return True

    def leave(self, guest: Guest) -> None:
        """Also one that was never let in, or has left already."""
        self._all.pop(guest, None)
        neighbours = self._by_peer.get(guest.peer, {})
        neighbours.pop(guest, None)
        if not neighbours:
            self._by_peer.pop(guest.peer, None)

    def _make_room(self, guests: dict[Guest, None], most: int, most_waiting: int) -> None:
        if len(guests) < min(most, most_waiting):
            return
        waiting = [guest for guest in guests if guest.is_waiting]
        if waiting and (len(guests) >= most or len(waiting) >= most_waiting):
            self.leave(waiting[0])
            waiting[0].drop()

"""Who belongs to this coordinator: enrolling and removing nodes while it runs.

The list beside the authority is written first (`enrol/roster.py`), the fleet follows: a crash between the two
is closed at the next start, which reads the list.
"""

import re
from pathlib import Path

from sparkd.clock import Clock
from sparkd.coordinator.reconciler import Reconciler
from sparkd.enrol.authority import Authority
from sparkd.enrol.roster import LiveRoster, enrol_node, revoke_node
from sparkd.errors import UsageError
from sparkd.records.answer import Membership, NodeEnrolled
from sparkd.records.names import NODE_ID

_MINTED = re.compile(r"[0-9a-f]{16}")


class Registry:
    """`addresses`: HOST:PORT where agents find us, the best first."""

    def __init__(
        self,
        folder: Path,
        authority: Authority,
        roster: LiveRoster,
        *,
        reconciler: Reconciler,
        clock: Clock,
        addresses: tuple[str, ...],
    ) -> None:
        self._folder = folder
        self._authority = authority
        self._roster = roster
        self._reconciler = reconciler
        self._clock = clock
        self._addresses = addresses

    def membership(self) -> Membership:
        roster = self._roster.now
        return Membership(
            holder=roster.holder,
            agent_urls=tuple(f"https://{address}" for address in self._addresses),
            authority=self._authority.pem,
            nodes=roster.names,
            revoked=tuple(node.id for node in roster.revoked),
        )

    def enrol(self, node_id: str, name: str, csr: str) -> NodeEnrolled:
        """Sign for a node, and expect it from now on. Idempotent for the same id and name.

        Raises UsageError for an id or a name that is none and for what is no signing request; Conflict for a
        name that another node has, a node that has another name, and an id that was removed.
        """
        if not _MINTED.fullmatch(node_id):
            raise UsageError(f"{node_id!r} is no node id: 16 hexadecimal digits")
        if not NODE_ID.fullmatch(name):
            raise UsageError(f"{name!r} cannot be a node's name: letters, digits and inner . _ - only")
        # Signed before anything is written: a request that is none leaves no trace.
        certificate = self._authority.sign_node(csr, node_id, name, self._clock.now().wall)
        enrol_node(self._folder, node_id, name)
        self._reconciler.enrol(node_id, name)
        return NodeEnrolled(node_id, name, certificate)

    def remove(self, name: str) -> Membership:
        """Its certificate counts no more from the next request on. Raises NotFound, Conflict."""
        node = self._reconciler.removable(name)
        if node.id in self._roster.now.names:
            revoke_node(self._folder, node.id, self._clock.now().wall)
        self._reconciler.remove(node.id)
        return self.membership()

"""The entrance of the agents' server: who comes in with a certificate, judged anew at each request.

OpenSSL has verified the signature of our own authority; dates, revocation and whose request it is are judged
here, so that whoever is refused gets to read why, and `nodes list` can show it. A connection may outlive its
certificate.
"""

import logging
import math

from starlette.requests import Request

from sparkd.clock import Clock
from sparkd.coordinator.guard import Scope
from sparkd.coordinator.peer import Peer
from sparkd.coordinator.view import rfc3339
from sparkd.enrol.authority import Authority
from sparkd.enrol.roster import LiveRoster
from sparkd.errors import CertificateRefused, ClockOff
from sparkd.records.defaults import Defaults
from sparkd.records.names import CLOCK_HEADER
from sparkd.records.verdict import Severity, Verdict

log = logging.getLogger("sparkd.coordinator")


class Entrance:
    """What judges raises CertificateRefused, or ClockOff where a clock is to blame."""

    def __init__(self, authority: Authority, roster: LiveRoster, clock: Clock, limits: Defaults) -> None:
        self._authority = authority
        self._roster = roster
        self._clock = clock
        self._limits = limits
        self.verdicts: dict[str, Verdict] = {}
        """What is wrong with the certificates of nodes, by id; until they come in with a better one."""

    def gate(self, scope: Scope) -> None:
        """Before anything is read of a request."""
        peer = scope["state"]["peer"]
        if peer is None or peer.node is None:
            raise CertificateRefused("certificate refused: it is no node's")
        try:
            self._judge(peer.node, peer, _told_clock(scope))
        except CertificateRefused as error:
            self._note(peer.node, error)
            raise
        self._look_ahead(peer.node, peer)

    def _judge(self, node: str, peer: Peer, told: float | None) -> None:
        now, grace = self._clock.now().wall, self._limits.clock_warn_s
        gone = next((one for one in self._roster.now.revoked if one.id == node), None)
        if gone is not None:
            raise CertificateRefused(
                f"certificate refused: {gone.name} was removed from this cluster on {rfc3339(gone.at)}"
            )
        if not peer.not_before - grace <= now <= peer.not_after + grace:
            until = f"valid from {rfc3339(peer.not_before)} to {rfc3339(peer.not_after)}"
            raise self._out_of_date(node, told, f"its certificate is {until}, and here it is {rfc3339(now)}")

    def hear_doubt(self, request: Request) -> str:
        """A node takes our own certificate for out of date. Gives the reason; `nodes list` shows it too."""
        node = _peer(request).node or ""
        why = "it takes the coordinator's certificate for out of date"
        error = self._out_of_date(node, _told_clock(request.scope), why)
        self._note(node, error)
        return str(error)

    def _out_of_date(self, node: str, told: float | None, why: str) -> CertificateRefused:
        """Only a clock that really differs is blamed; else the certificate is what it seems to be."""
        off = 0.0 if told is None else told - self._clock.now().wall
        if abs(off) <= self._limits.clock_warn_s:
            return CertificateRefused(
                f"certificate refused: {why}; `sparkd nodes add` gives the node a new one"
            )
        return ClockOff(
            f"clock of {self._name(node)} is off by {in_words(off)} against the coordinator's: {why}"
        )

    def check_is(self, request: Request, node: str) -> str:
        """A node speaks for itself only. Gives the name that it was enrolled under."""
        owner = _peer(request).node
        if owner != node:
            raise CertificateRefused(f"certificate refused: it is {owner}'s, and the request is {node}'s")
        return self._name(node)

    def wants_renewal(self, request: Request) -> bool:
        peer = _peer(request)
        life = peer.not_after - peer.not_before
        return self._clock.now().wall >= peer.not_before + life * self._limits.certificate_renew_share

    def renew(self, request: Request, csr: str) -> str:
        """A new certificate for who asks. Raises UsageError for what is no signing request."""
        node = _peer(request).node or ""
        return self._authority.sign_node(csr, node, self._name(node), self._clock.now().wall)

    def _name(self, node: str) -> str:
        return self._roster.now.names.get(node, node)

    def _note(self, node: str, error: CertificateRefused) -> None:
        clock = isinstance(error, ClockOff)
        verdict = Verdict(
            "CLOCK_OFF" if clock else "CERTIFICATE_REFUSED",
            Severity.BLOCK,
            str(error),
            evidence=f"last tried at {rfc3339(self._clock.now().wall)}",
            remedy="set its clock; `timedatectl` on it shows whether it is kept" if clock else "",
        )
        known = self.verdicts.get(node)
        if known is None or known.id != verdict.id:
            log.warning("node %s stays outside: %s", node, error)
        self.verdicts[node] = verdict

    def _look_ahead(self, node: str, peer: Peer) -> None:
        """It comes in; whether it will for long is told in time."""
        self.verdicts.pop(node, None)
        if peer.not_after - self._clock.now().wall < self._limits.certificate_warn_s:
            self.verdicts[node] = Verdict(
                "CERTIFICATE_ENDS",
                Severity.WARN,
                f"its certificate ends at {rfc3339(peer.not_after)} and was not renewed",
                cause="the agent's log says why: most often the node has no `openssl`, or the folder of its "
                "certificate cannot be written",
                remedy="cure that, or run `sparkd nodes add` for it again",
            )


def _peer(request: Request) -> Peer:
    """The gate has let nobody in without one."""
    peer: Peer = request.state.peer
    return peer


def _told_clock(scope: Scope) -> float | None:
    """The caller's own wall clock, from its header."""
    try:
        told = float(dict(scope["headers"])[CLOCK_HEADER.encode()])
    except (KeyError, ValueError):
        return None
    return told if math.isfinite(told) else None


def in_words(seconds: float) -> str:
    """`-7500` -> `-2 h 5 min`: two units are enough to know which clock to set."""
    rest = int(abs(seconds))
    parts = []
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {unit}")
    return ("-" if seconds < 0 else "+") + " ".join(parts[:2] or ["0 s"])

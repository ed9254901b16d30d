"""The coordinator's own certificate: made at each start, and anew from two thirds of its life on."""

import logging
import ssl
from pathlib import Path

from sparkd.coordinator.peer import NO_CHECK_TIME
from sparkd.enrol.authority import Authority
from sparkd.private_file import write_private
from sparkd.records.defaults import Defaults

log = logging.getLogger("sparkd.coordinator")


class OwnCertificate:
    """Two live TLS contexts: a renewed certificate counts from the next handshake on, without a restart."""

    def __init__(self, authority: Authority, folder: Path, now: float, limits: Defaults) -> None:
        self._authority = authority
        self._file = folder / "coordinator.pem"
        self._renew_after_s = limits.certificate_life_s * limits.certificate_renew_share
        self.agents = _context()
        """Certificates both ways."""
        self.agents.verify_mode = ssl.CERT_REQUIRED
        self.agents.verify_flags |= NO_CHECK_TIME
        self.agents.load_verify_locations(cadata=authority.pem)
        self.people = _context()
        """For REST: who calls shows a token."""
        self._made = 0.0
        self._make(now)

    def renew_if_due(self, now: float) -> None:
        """`now`: wall clock. Also for a clock that was set back behind the day of issue."""
        if not self._made - 1.0 <= now < self._made + self._renew_after_s:
            self._make(now)
            log.info("the coordinator's certificate was renewed")

    def _make(self, now: float) -> None:
        key, certificate = self._authority.make_coordinator(now)
        # OpenSSL takes a key from a file only.
        write_private(self._file, key + certificate)
        for context in (self.agents, self.people):
            context.load_cert_chain(self._file)
        self._made = now


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # No resumption: every connection shows its certificate.
    context.num_tickets = 0
    return context

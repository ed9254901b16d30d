"""Who is at the other end of a TLS connection, by a certificate whose signature OpenSSL has verified."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sparkd.records.names import node_of_uri

NO_CHECK_TIME: Final = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME. OpenSSL leaves a certificate's dates to us: it would break off the handshake
without a word about whose clock is wrong, and never look again while a connection lasts.
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """A certificate of our own authority. Moments are wall clock, seconds since 1970."""

    node: str | None
    """The node id in its subject alternative name; None for a certificate that is no node's."""
    not_before: float
    not_after: float


def read_peer(certificate: Mapping[str, Any]) -> Peer:
    """From what `SSLObject.getpeercert()` gives."""
    uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    return Peer(
        node=node_of_uri(uris[0]) if len(uris) == 1 else None,
        not_before=ssl.cert_time_to_seconds(certificate["notBefore"]),
        not_after=ssl.cert_time_to_seconds(certificate["notAfter"]),
    )

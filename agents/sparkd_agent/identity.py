"""What this node shows its coordinator, and whom it believes.

    ca.crt     the authority of its cluster: nobody else is believed, whatever the system trusts
    node.key   0600, made on this node; it never leaves it
    node.crt   names the node by its id; valid for a year, renewed in place from two thirds on

A coordinator is known by the URI in its certificate, not by a host name: it may move. Its dates are judged
here and not by OpenSSL, which would break off without a word about whose clock is wrong.
"""

import asyncio
import os
import ssl
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sparkd.errors import CertificateRefused, ClockOff, UsageError
from sparkd.records.defaults import DEFAULTS
from sparkd.records.names import COORDINATOR_URI

AUTHORITY: Final = "ca.crt"
KEY: Final = "node.key"
CERTIFICATE: Final = "node.crt"

_NO_CHECK_TIME: Final = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME."""
_OPENSSL_S: Final = 30.0


class Identity:
    """The three files of one folder. Raises UsageError naming the file that cannot be used.

    `context` is live: what `install` put there counts from the next connection on. `version` grows with it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.version = 0
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.context.check_hostname = False
        self.context.verify_flags |= _NO_CHECK_TIME
        self._load("authority", AUTHORITY)
        self._load("certificate", CERTIFICATE)

    def _load(self, what: str, name: str) -> None:
        try:
            if name == AUTHORITY:
                self.context.load_verify_locations(cafile=self._folder / name)
            else:
                self.context.load_cert_chain(self._folder / name, self._folder / KEY)
        except OSError as error:  # an SSLError is one too
            raise UsageError(
                f"the {what} of this node cannot be read from {self._folder}: {error}"
            ) from error

    async def request(self) -> str:
        """A signing request for this node's key, as PEM. Raises UsageError without a working `openssl`."""
        return await asyncio.to_thread(make_request, self._folder / KEY)

    def install(self, certificate: str) -> None:
        """Use this certificate (PEM) from the next connection on. Raises UsageError: the old one stays."""
        fresh = self._folder / f".{CERTIFICATE}.new"
        try:
            with fresh.open("w", encoding="utf-8") as stream:
                stream.write(certificate)
                stream.flush()
                os.fsync(stream.fileno())
            # A context of its own finds out whether key and certificate belong together.
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(fresh, self._folder / KEY)
            fresh.replace(self._folder / CERTIFICATE)
        except OSError as error:
            raise UsageError(f"the renewed certificate cannot be used: {error}") from error
        self._load("certificate", CERTIFICATE)
        self.version += 1


def make_request(key: Path) -> str:
    """By the `openssl` program: no library of ours that could do it fits into an agent."""
    argv = ["openssl", "req", "-new", "-key", str(key), "-subj", "/CN=node", "-config", os.devnull]
    try:
        done = subprocess.run(
            argv, capture_output=True, timeout=_OPENSSL_S, check=True, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        raise UsageError("the program `openssl` is not on this node") from None
    except subprocess.CalledProcessError as error:
        raise UsageError(f"openssl req failed: {error.stderr.decode(errors='replace').strip()}") from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"openssl req did not end within {_OPENSSL_S:g} s") from error
    return done.stdout.decode()


def check_coordinator(certificate: Mapping[str, Any]) -> None:
    """Of a certificate that our authority has signed. Raises CertificateRefused for one that is a node's."""
    names = certificate.get("subjectAltName", ())
    if ("URI", COORDINATOR_URI) not in names:
        shown = ", ".join(value for _, value in names) or "nobody"
        raise CertificateRefused(f"certificate refused: it names {shown}, not the coordinator")


def check_dates(certificate: Mapping[str, Any], now: float) -> None:
    """Raises ClockOff when by this node's clock (`now`, wall) the certificate is not valid."""
    grace = DEFAULTS.clock_warn_s
    begin = ssl.cert_time_to_seconds(certificate["notBefore"])
    end = ssl.cert_time_to_seconds(certificate["notAfter"])
    if not begin - grace <= now <= end + grace:
        here = time.strftime("%b %d %H:%M:%S %Y GMT", time.gmtime(now))
        raise ClockOff(
            "the clock of this node or of the coordinator is off: the coordinator's certificate is valid "
            f"from {certificate['notBefore']} to {certificate['notAfter']}, and here it is {here}"
        )

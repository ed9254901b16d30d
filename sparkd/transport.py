"""HTTP to the coordinator, over the standard library.

httpx2 was measured first: it adds 80 to 100 ms to every call of the command line (`sparkd status` as a whole
process: 0.27 s against 0.19 s), and of a client we need one request at a time and a stream of lines.
"""

import http.client
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from sparkd.errors import CertificateRefused, CoordinatorUnreachable, UsageError
from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd.records.names import COORDINATOR_URI


class Response(Protocol):
    """An answer whose body is still to be read. Reading raises CoordinatorUnreachable when it breaks off."""

    @property
    def status(self) -> int: ...
    def read(self) -> bytes: ...
    def lines(self) -> Iterator[bytes]:
        """Line by line as they arrive, without their ends."""

    def close(self) -> None: ...


class Transport(Protocol):
    def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, *, stream: bool
    ) -> Response:
        """One request. Raises CoordinatorUnreachable when no answer came, CertificateRefused before anything
        is sent to somebody else.
        """


@dataclass(frozen=True, slots=True)
class HttpResponse:
    connection: http.client.HTTPConnection
    response: http.client.HTTPResponse
    where: str

    @property
    def status(self) -> int:
        return self.response.status

    def read(self) -> bytes:
        try:
            return self.response.read()
        except (OSError, http.client.HTTPException) as error:
            raise _unreachable(self.where, error) from error
        finally:
            self.close()

    def lines(self) -> Iterator[bytes]:
        try:
            while line := self.response.readline():
                yield line.rstrip(b"\r\n")
        except (OSError, http.client.HTTPException) as error:
            raise _unreachable(self.where, error) from error
        finally:
            self.close()

    def close(self) -> None:
        self.response.close()
        self.connection.close()


class HttpTransport:
    """To one base URL (`http://host:port`, `https://host:port` or `unix:///path`). A connection for each
    request: on loopback it costs nothing, and none is left half dead by a coordinator that restarted.

    With an `authority_file` an https coordinator is known by that authority and the name in its certificate,
    whatever its address; without one by what the system trusts.
    """

    def __init__(
        self, base_url: str, limits: Defaults = DEFAULTS, authority_file: Path | None = None
    ) -> None:
        parts = urlsplit(base_url)
        is_tcp = parts.scheme in {"http", "https"} and parts.hostname and not parts.path.strip("/")
        is_unix = parts.scheme == "unix" and not parts.netloc and parts.path.startswith("/")
        if not is_tcp and not is_unix:
            raise UsageError(
                f"not the URL of a coordinator: {base_url!r}; it looks like http://host:7070 or unix:///path"
            )
        self._where = base_url
        self._host = parts.hostname or "localhost"
        self._port = parts.port
        self._path = parts.path if is_unix else None
        self._is_ours = authority_file is not None
        self._tls = _context(authority_file) if parts.scheme == "https" else None
        self._limits = limits

    def _connection(self) -> http.client.HTTPConnection:
        timeout = self._limits.client_connect_s
        if self._path is not None:
            return _UnixConnection(self._path, timeout)
        if self._tls is not None:
            return http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._tls)
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout)

    def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, *, stream: bool
    ) -> Response:
        connection = self._connection()
        try:
            connection.connect()
            sock = connection.sock
            if isinstance(sock, ssl.SSLSocket) and self._is_ours:
                _check_coordinator(sock, self._where)
            sock.settimeout(self._limits.client_answer_s)
            connection.request(method, target, body=body, headers=dict(headers))
            response = connection.getresponse()
            if stream:
                _watch_idle(sock)
        except CertificateRefused:
            connection.close()
            raise
        except ssl.SSLCertVerificationError as error:
            connection.close()
            why = error.verify_message or error.reason
            raise CertificateRefused(f"certificate refused: that of {self._where}: {why}") from error
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise _unreachable(self._where, error) from error
        return HttpResponse(connection, response, self._where)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _context(authority_file: Path | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=authority_file)
    except OSError as error:  # an SSLError is one too
        raise UsageError(f"no authority can be read from {authority_file}: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if authority_file is not None:
        context.check_hostname = False
    return context


def _check_coordinator(sock: ssl.SSLSocket, where: str) -> None:
    certificate = sock.getpeercert() or {}
    names = certificate.get("subjectAltName", ())
    if ("URI", COORDINATOR_URI) not in names:
        raise CertificateRefused(f"certificate refused: that of {where} is not a coordinator's")


def _watch_idle(sock: socket.socket) -> None:
    """A stream may rightly be quiet for hours: the kernel asks whether the other end still exists."""
    sock.settimeout(None)
    with suppress(OSError):  # a socket that the response has closed already: its body is complete
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)


def _unreachable(where: str, error: Exception) -> CoordinatorUnreachable:
    if isinstance(error, ConnectionRefusedError):
        text = "nothing listens there"
    elif isinstance(error, TimeoutError):
        text = "it did not answer in time"
    elif isinstance(error, socket.gaierror):
        text = "its name cannot be resolved"
    elif isinstance(error, FileNotFoundError):
        text = "there is no such socket"
    else:
        text = str(error) or type(error).__name__
    return CoordinatorUnreachable(f"no coordinator at {where}: {text}")

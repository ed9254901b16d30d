"""HTTP to the coordinator, over the standard library.

httpx2 was measured first: it adds 80 to 100 ms to every call of the command line (`sparkd status` as a whole
process: 0.27 s against 0.19 s), and of a client we need one request at a time and a stream of lines.
"""

import http.client
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from sparkd.errors import CoordinatorUnreachable, UsageError
from sparkd.records.defaults import DEFAULTS, Defaults


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
        """One request. Raises CoordinatorUnreachable when no answer came."""


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
    """To one base URL (`http://host:port`, no path). A connection for each request: on loopback it costs
    nothing, and none is left half dead by a coordinator that restarted.
    """

    def __init__(self, base_url: str, limits: Defaults = DEFAULTS) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/"):
            raise UsageError(f"not the URL of a coordinator: {base_url!r}; it looks like http://host:7070")
        self._where = base_url
        self._host = parts.hostname
        self._port = parts.port
        self._tls = parts.scheme == "https"
        self._limits = limits

    def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, *, stream: bool
    ) -> Response:
        kind = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self._limits.client_connect_s)
        try:
            connection.connect()
            sock = connection.sock
            sock.settimeout(self._limits.client_answer_s)
            connection.request(method, target, body=body, headers=dict(headers))
            response = connection.getresponse()
            if stream:
                _watch_idle(sock)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise _unreachable(self._where, error) from error
        return HttpResponse(connection, response, self._where)


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
    else:
        text = str(error) or type(error).__name__
    return CoordinatorUnreachable(f"no coordinator at {where}: {text}")

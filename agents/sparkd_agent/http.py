"""HTTP/1.1 as an agent needs it: h11 on asyncio streams. No redirects, no proxies, no content encoding."""

import asyncio
import ssl as tls
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

import h11

from sparkd.errors import AnswerBroken, CertificateRefused, NotAnswered, NotConnected
from sparkd.records.defaults import DEFAULTS
from sparkd.records.rank import Address

_READ_BYTES = 64 * 1024


class Response(NamedTuple):
    status: int
    body: bytes


class Exchange(Protocol):
    """What `request` is, for those who get their transport as an argument."""

    async def __call__(
        self,
        address: Address,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = ...,
        body: bytes = ...,
        timeout_s: float = ...,
        max_body: int = ...,
    ) -> Response: ...


class Connection:
    """A connection that is kept between requests and made anew when it was lost. One request at a time.

    A request is never sent twice: a kept connection is looked at before it is used, and one that breaks
    later raises. `ssl`: the context of a TLS connection; None speaks plain HTTP. `check` sees the other end's
    certificate before anything is sent, and raises CertificateRefused.
    """

    def __init__(
        self,
        address: Address,
        *,
        ssl: tls.SSLContext | None = None,
        check: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        self.address = address
        self._ssl = ssl
        self._check = check
        self._heard = False
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._state = h11.Connection(h11.CLIENT)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """At once; what was not read is lost. The next request connects again."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout_s: float = DEFAULTS.agent_request_timeout_s,
        max_body: int = DEFAULTS.body_bytes,
    ) -> Response:
        """One exchange, connecting included, within `timeout_s` seconds.

        Raises `NotConnected` (nothing was sent), `NotAnswered` (sent, and no whole answer in time) or
        `AnswerBroken` (broken off, no HTTP, or a body above `max_body` bytes). Any status is an answer. With
        TLS also `CertificateRefused`, by either end.
        """
        whole = False
        connected = False
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await self._connected()
                connected = True
                await self._send(writer, method, path, headers or {}, body)
                response = await self._receive(reader, max_body)
                whole = self._ready_for_more()
        except TimeoutError:
            if not connected:
                raise NotConnected(
                    f"{self.address} does not take connections within {timeout_s:g} s"
                ) from None
            raise NotAnswered(
                f"{self.address} did not answer {method} {path} within {timeout_s:g} s"
            ) from None
        except h11.ProtocolError as error:
            raise AnswerBroken(
                f"{self.address} answered {method} {path} with no valid HTTP: {error}"
            ) from error
        except OSError as error:
            raise self._broken(method, path, error) from error
        finally:
            if not whole:
                self.close()
        return response

    def _broken(self, method: str, path: str, error: OSError) -> AnswerBroken | CertificateRefused:
        """With TLS 1.3 a client learns only after its handshake that it was refused: by an alert at its first
        read, or by a reset where the alert was lost.
        """
        if isinstance(error, tls.SSLError) and "ALERT" in (error.reason or ""):
            said = (error.reason or "").rpartition("ALERT_")[2].replace("_", " ").lower()
            return CertificateRefused(f"certificate refused: {self.address} says: {said}")
        if self._ssl is not None and not self._heard:
            return CertificateRefused(
                f"certificate refused, or {self.address} has just ended: it closed the connection before its "
                f"first answer"
            )
        return AnswerBroken(f"{self.address} broke off {method} {path}: {_reason(error)}")

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._reader is not None and self._writer is not None:
            if not self._reader.at_eof() and not self._writer.is_closing():
                return self._reader, self._writer
            self.close()
        try:
            async with asyncio.timeout(DEFAULTS.agent_connect_timeout_s):
                self._reader, self._writer = await asyncio.open_connection(
                    self.address.host, self.address.port, ssl=self._ssl
                )
        except TimeoutError:
            limit = DEFAULTS.agent_connect_timeout_s
            raise NotConnected(f"{self.address} does not take connections within {limit:g} s") from None
        except tls.SSLCertVerificationError as error:
            why = error.verify_message or error.reason
            raise CertificateRefused(f"certificate refused: that of {self.address}: {why}") from error
        except tls.SSLError as error:
            raise NotConnected(f"{self.address} speaks no TLS with us: {error.reason or error}") from error
        except OSError as error:
            raise NotConnected(f"{self.address} cannot be reached: {_reason(error)}") from error
        self._state = h11.Connection(h11.CLIENT)
        self._heard = False
        if self._check is not None:
            self._check(self._writer.get_extra_info("peercert"))
        return self._reader, self._writer

    async def _send(
        self, writer: asyncio.StreamWriter, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> None:
        fields = {"host": str(self.address), **{name.lower(): value for name, value in headers.items()}}
        if body or method not in ("GET", "HEAD"):
            fields["content-length"] = str(len(body))
        request = h11.Request(method=method, target=path, headers=list(fields.items()))
        data = self._state.send(request) or b""
        if body:
            data += self._state.send(h11.Data(data=body)) or b""
        data += self._state.send(h11.EndOfMessage()) or b""
        writer.write(data)
        await writer.drain()

    async def _receive(self, reader: asyncio.StreamReader, max_body: int) -> Response:
        status, body = 0, bytearray()
        while True:
            event = self._state.next_event()
            if event is h11.NEED_DATA:
                data = await reader.read(_READ_BYTES)
                if not data and self._ssl is not None and not self._heard:
                    raise ConnectionResetError
                self._heard = True
                self._state.receive_data(data)
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > max_body:
                    raise AnswerBroken(f"{self.address} answered with more than {max_body} bytes")
            elif isinstance(event, h11.EndOfMessage):
                return Response(status, bytes(body))
            elif isinstance(event, h11.ConnectionClosed):
                raise AnswerBroken(f"{self.address} closed the connection before answering")

    def _ready_for_more(self) -> bool:
        """Whether the connection can be kept after a whole answer."""
        if self._state.our_state is not h11.DONE or self._state.their_state is not h11.DONE:
            return False
        self._state.start_next_cycle()
        return True


async def request(
    address: Address,
    method: str,
    path: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    timeout_s: float = DEFAULTS.agent_request_timeout_s,
    max_body: int = DEFAULTS.body_bytes,
    ssl: tls.SSLContext | None = None,
) -> Response:
    """One exchange on a connection of its own. Raises as `Connection.request`."""
    async with Connection(address, ssl=ssl) as connection:
        fields = {"connection": "close", **(headers or {})}
        return await connection.request(
            method, path, headers=fields, body=body, timeout_s=timeout_s, max_body=max_body
        )


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__

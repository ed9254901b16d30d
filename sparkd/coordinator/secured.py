"""TLS between a socket and HTTP, on OpenSSL's memory BIOs.

Not asyncio's own: that holds 256 KiB for every connection, also for those that never say a word; it has no
bound for a handshake below a minute; and it closes a refused connection so that the client often sees a reset
instead of the reason. Here a connection costs 2 KiB until its first record is whole and 60 KiB then.
"""

import asyncio
import collections
import logging
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from uvicorn.protocols.utils import get_remote_addr

from sparkd.coordinator.bounded import BoundedH11
from sparkd.coordinator.guests import Guests
from sparkd.coordinator.peer import Peer, read_peer
from sparkd.records.defaults import Defaults

log = logging.getLogger("sparkd.coordinator")

_TOLD_S: Final = 10.0
_TOLD_PEERS: Final = 1000
_HANDSHAKE: Final = 22
_HEADER_BYTES: Final = 5
_READ_BYTES: Final = 16 * 1024


class Refusals:
    """Tells of refused connections; strangers fill no log: a line in 10 s for each address."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}

    def note(self, peer: str, why: str, now: float) -> None:
        """`now`: seconds on any clock that does not jump."""
        if now - self._told.get(peer, -_TOLD_S) < _TOLD_S:
            return
        if len(self._told) >= _TOLD_PEERS:
            self._told.clear()
        self._told[peer] = now
        log.warning("refused a connection from %s: %s", peer, why)


class Turns:
    """One handshake in each turn of the loop: a burst of them delays nothing else by more than one, and those
    that had to make room meanwhile cost nothing any more.
    """

    def __init__(self) -> None:
        self._waiting: collections.deque[Secured] = collections.deque()

    def take(self, one: "Secured") -> None:
        self._waiting.append(one)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        one = self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        one.advance()


class Secured(asyncio.Protocol):
    """One connection. `make_http` makes what speaks through it, once both ends have shown who they are."""

    def __init__(
        self,
        context: ssl.SSLContext,
        make_http: Callable[[Peer | None], BoundedH11],
        *,
        guests: Guests,
        refusals: Refusals,
        turns: Turns,
        limits: Defaults,
    ) -> None:
        self._context = context
        self._make_http = make_http
        self._guests = guests
        self._refusals = refusals
        self._turns = turns
        self._limits = limits
        self.peer = ""
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls: ssl.SSLObject | None = None
        self.below: asyncio.Transport | None = None
        self.reading = True
        self._first = bytearray()
        self._http: BoundedH11 | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._is_deaf = False

    # As a guest.

    @property
    def is_waiting(self) -> bool:
        return self._http is None or self._http.is_waiting

    def drop(self) -> None:
        if self.below is not None:
            self.below.abort()

    # As the socket's protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            raise TypeError("TLS needs a stream")
        self.below = transport
        self.peer = (get_remote_addr(transport) or ("", 0))[0]
        if not self._guests.enter(self):
            transport.abort()
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._limits.receive_s, self.drop)

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        if self.tls is None:
            self._first += data
            if not _is_whole(self._first):
                return
            self.tls = self._context.wrap_bio(self.incoming, self.outgoing, server_side=True)
            data = bytes(self._first)
            self._first.clear()
        self.incoming.write(data)
        if self._http is None:
            self._turns.take(self)
        else:
            self.advance()

    def eof_received(self) -> bool:
        if self._http is not None:
            self._http.eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._guests.leave(self)
        self.below = None
        if self._http is not None:
            self._http.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._http is not None:
            self._http.pause_writing()

    def resume_writing(self) -> None:
        if self._http is not None:
            self._http.resume_writing()

    # In between.

    def advance(self) -> None:
        """The handshake as far as it goes, then everything that can be read."""
        if self.tls is None or self.below is None or self._is_deaf:
            return
        try:
            if self._http is None:
                self.tls.do_handshake()
                self._begin_http(self.tls)
            while self.reading and self._http is not None and not self._is_deaf:
                data = self.tls.read(_READ_BYTES)
                if not data:
                    self.close()
                    break
                self._http.data_received(data)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._refuse(error)
        self.flush()

    def _begin_http(self, tls: ssl.SSLObject) -> None:
        self._disarm()
        certificate = tls.getpeercert()
        self._http = self._make_http(read_peer(certificate) if certificate else None)
        self._http.connection_made(_SecuredTransport(self))

    def _refuse(self, error: ssl.SSLError) -> None:
        """OpenSSL has put an alert into the outgoing bytes: the other end shall get to read it."""
        why = (error.reason or str(error)).replace("_", " ").lower()
        self._refusals.note(self.peer, why, asyncio.get_running_loop().time())
        self._is_deaf = True
        self.flush()
        if self.below is None or self.below.is_closing():
            return
        self.below.write_eof()
        asyncio.get_running_loop().call_later(self._limits.linger_s, self.below.abort)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def flush(self) -> None:
        if self.outgoing.pending and self.below is not None and not self.below.is_closing():
            self.below.write(self.outgoing.read())

    def say_goodbye(self) -> None:
        self._is_deaf = True
        if self.tls is not None:
            # It also wants to hear the other end's goodbye; we do not wait for that.
            with suppress(ssl.SSLError):
                self.tls.unwrap()
        self.flush()

    def close(self) -> None:
        self.say_goodbye()
        if self.below is not None:
            self.below.close()


class _SecuredTransport(asyncio.Transport):
    """What HTTP sees of it."""

    def __init__(self, secured: Secured) -> None:
        super().__init__()
        self._secured = secured

    def write(self, data: bytes | bytearray | memoryview) -> None:
        secured = self._secured
        if secured.tls is None or self.is_closing():
            return
        rest = memoryview(data)
        while rest:
            rest = rest[secured.tls.write(rest) :]
        secured.flush()

    def write_eof(self) -> None:
        self._secured.say_goodbye()
        if self._secured.below is not None:
            self._secured.below.write_eof()

    def close(self) -> None:
        self._secured.close()

    def abort(self) -> None:
        self._secured.drop()

    def is_closing(self) -> bool:
        return self._secured.below is None or self._secured.below.is_closing()

    def pause_reading(self) -> None:
        self._secured.reading = False
        if self._secured.below is not None:
            self._secured.below.pause_reading()

    def resume_reading(self) -> None:
        self._secured.reading = True
        if self._secured.below is not None:
            self._secured.below.resume_reading()
        asyncio.get_running_loop().call_soon(self._secured.advance)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name in ("ssl_object", "sslcontext"):
            return self._secured.tls
        return default if self._secured.below is None else self._secured.below.get_extra_info(name, default)


def _is_whole(first: bytearray) -> bool:
    """Whether the first TLS record is here; also true for what is none, so that OpenSSL can refuse it."""
    if not first or first[0] != _HANDSHAKE:
        return bool(first)
    if len(first) < _HEADER_BYTES:
        return False
    return len(first) >= _HEADER_BYTES + min(int.from_bytes(first[3:5]), _READ_BYTES)

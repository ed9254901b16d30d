"""uvicorn's HTTP/1.1 with what it lacks: deadlines for head and body, a bound for the head, a peer's
certificate in the scope, and refusals that the client gets to read.
"""

import asyncio
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import get_remote_addr

from sparkd.coordinator.gathered import Gathering
from sparkd.coordinator.guests import Guests
from sparkd.coordinator.peer import Peer
from sparkd.coordinator.problems import MEDIA_TYPE, problem
from sparkd.errors import HeadTooLarge, SparkdError, UsageError
from sparkd.records.defaults import Defaults


class BoundedH11(H11Protocol):
    """One connection. `guests` count it, unless the layer below does; `peer` is who showed a certificate, and
    handlers find it as `request.state.peer`.
    """

    def __init__(
        self, *, limits: Defaults, guests: Guests | None, peer: Peer | None, **uvicorns: Any
    ) -> None:
        super().__init__(**uvicorns)
        self.app_state = {**self.app_state, "peer": peer}
        self.peer = ""
        self._limits = limits
        self._guests = guests
        self._deadline: asyncio.TimerHandle | None = None
        self._below: asyncio.Transport | None = None

    @property
    def is_waiting(self) -> bool:
        return self.cycle is None

    def drop(self) -> None:
        if self._below is not None:
            self._below.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # As narrow as uvicorn's own: it serves streams only.
        self._below = transport
        self.peer = (get_remote_addr(transport) or ("", 0))[0]
        super().connection_made(_Lingering(transport, self.loop, self))
        if self._guests is not None and not self._guests.enter(self):
            self.drop()
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        if self._guests is not None:
            self._guests.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return  # refused already: what still comes is thrown away
        if self._deadline is None:
            self._arm()
        super().data_received(data)
        if not self._is_half_received:
            self._disarm()

    @property
    def linger_s(self) -> float:
        """How long to read on after an answer that did not wait for the whole request; else 0."""
        unread = self.conn.their_state in (h11.SEND_BODY, h11.ERROR)
        return self._limits.linger_s if unread else 0.0

    @property
    def _is_half_received(self) -> bool:
        state = self.conn.their_state
        return state is h11.SEND_BODY or (state is h11.IDLE and bool(self.conn.trailing_data[0]))

    def _arm(self) -> None:
        self._deadline = self.loop.call_later(self._limits.receive_s, self.drop)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP, or has too long a head, gets a problem document as every other refusal does."""
        error: SparkdError = UsageError(msg)
        if len(self.conn.trailing_data[0]) > self._limits.head_bytes:
            error = HeadTooLarge(f"the head of a request may hold {self._limits.head_bytes} bytes")
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = msgspec.json.encode(problem(error))
            headers = [
                ("content-type", MEDIA_TYPE),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            response = h11.Response(status_code=error.http_status, headers=headers)
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class _Lingering(Gathering):
    """Closing while the client still sends resets the connection, and our answer is lost with it. So our side
    is closed first, and what still comes is thrown away for a moment.
    """

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, http: BoundedH11
    ) -> None:
        super().__init__(transport, loop)
        self._http = http
        self._is_lingering = False

    def close(self) -> None:
        if self.is_closing():
            return
        seconds = self._http.linger_s
        if not seconds:
            super().close()
            return
        self._flush()
        self._is_lingering = True
        self._transport.write_eof()
        self._transport.resume_reading()
        self._loop.call_later(seconds, self._transport.abort)

    def is_closing(self) -> bool:
        return self._is_lingering or super().is_closing()

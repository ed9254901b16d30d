"""What stands before every handler of both servers: bearer tokens and bounded bodies. Plain ASGI."""

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from sparkd.coordinator.problems import MEDIA_TYPE, problem
from sparkd.errors import SparkdError, TooLarge, Unauthorized
from sparkd.records.defaults import Defaults

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guard:
    """Lets a request through that carries the token (`open_paths` need none) and whose body stays bounded."""

    def __init__(
        self,
        app: App,
        token: str,
        limits: Defaults,
        *,
        open_paths: frozenset[str] = frozenset(),
    ) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()
        self._open_paths = open_paths
        self._body_bytes = limits.body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"authorization", b"")
        if scope["path"] not in self._open_paths and not hmac.compare_digest(given, self._expected):
            await _refuse(send, Unauthorized("a valid bearer token is needed"))
            return
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._body_bytes:
            await _refuse(send, TooLarge(f"a request body may hold {self._body_bytes} bytes"))
            return
        received = 0

        async def bounded() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._body_bytes:
                raise TooLarge(f"a request body may hold {self._body_bytes} bytes")
            return message

        await self._app(scope, bounded, send)


async def _refuse(send: Send, error: SparkdError) -> None:
    body = msgspec.json.encode(problem(error))
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": error.http_status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

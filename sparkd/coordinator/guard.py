"""What stands before every handler of both servers: who may come in, and bounded bodies. Plain ASGI."""

import hmac
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

import msgspec

from sparkd.coordinator.problems import MEDIA_TYPE, problem
from sparkd.coordinator.tokens import Scope as TokenScope
from sparkd.coordinator.tokens import Tokens, allows
from sparkd.errors import Forbidden, SparkdError, TooLarge, Unauthorized
from sparkd.records.defaults import Defaults

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Gate = Callable[[Scope], None]
"""Raises a SparkdError for a request that may not come in; sees nothing of its body."""

OPEN_PATHS: Final = frozenset({"/healthz"})
_READS: Final = frozenset({"/v1/plan", "/v1/preflight"})
"""POST only because their question is long: they change nothing."""
_DRAINS: Final = re.compile(r"/v1/nodes/[^/]+/(drain|resume)")


class Guard:
    def __init__(self, app: App, gate: Gate, limits: Defaults) -> None:
        self._app = app
        self._gate = gate
        self._body_bytes = limits.body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._gate(scope)
            self._check_length(dict(scope["headers"]).get(b"content-length", b"0"))
        except SparkdError as error:
            await _refuse(send, error)
            return
        received = 0

        async def bounded() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._body_bytes:
                raise self._too_large()
            return message

        await self._app(scope, bounded, send)

    def _check_length(self, told: bytes) -> None:
        if not told.isdigit() or int(told) > self._body_bytes:
            raise self._too_large()

    def _too_large(self) -> TooLarge:
        return TooLarge(f"a request body may hold {self._body_bytes} bytes")


def rest_gate(tokens: Tokens) -> Gate:
    """A bearer token whose scope is wide enough; `/healthz` alone is open."""

    def gate(scope: Scope) -> None:
        if scope["path"] in OPEN_PATHS:
            return
        held = tokens.scope_of(_bearer(scope))
        if held is None:
            raise Unauthorized("a valid bearer token is needed")
        wanted = wanted_scope(scope["method"], scope["path"])
        if not allows(held, wanted):
            raise Forbidden(
                f"this token may only {held}: {scope['method']} {scope['path']} needs scope {wanted}"
            )

    return gate


def wanted_scope(method: str, path: str) -> TokenScope:
    """Reading needs `read`; deciding which machines belong here `admin`; everything else `operate`."""
    if method in ("GET", "HEAD") or path in _READS:
        return "read"
    if method == "POST" and _DRAINS.fullmatch(path):
        return "operate"
    return "admin" if path.startswith("/v1/nodes") else "operate"


def shared_token_gate(token: str) -> Gate:
    """One token for all agents: those of a local set, which run as one user on one machine."""
    expected = token.encode()

    def gate(scope: Scope) -> None:
        if not hmac.compare_digest(_bearer(scope), expected):
            raise Unauthorized("a valid bearer token is needed")

    return gate


def _bearer(scope: Scope) -> bytes:
    given: bytes = dict(scope["headers"]).get(b"authorization", b"")
    return given.removeprefix(b"Bearer ") if given.startswith(b"Bearer ") else b""


async def _refuse(send: Send, error: SparkdError) -> None:
    body = msgspec.json.encode(problem(error))
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": error.http_status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

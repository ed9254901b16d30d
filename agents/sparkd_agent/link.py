"""The agent's link to its coordinator: hello, then a long poll for documents beside a report each beat.

         ┌────────── 409, or no contact for a lease ─────────┐
         v                                                   │
    say hello ──> poll for documents   (25 s each)           │
         ^   └──> report               (each beat, at once on news) ──┘
         └── retried every 3 s at the latest

The agent only dials out: nothing listens here.
"""

import asyncio
import logging
import time
from typing import TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from sparkd.errors import AnswerBroken, NotAnswered, NotConnected
from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd.records.document import Document, Revision
from sparkd.records.rank import Address
from sparkd.records.report import ReportAnswer, Welcome
from sparkd_agent.daemon import Agent
from sparkd_agent.http import Connection, Response

log = logging.getLogger("sparkd.agent")

T = TypeVar("T")
_LOST = (NotConnected, NotAnswered, AnswerBroken)


class LinkError(Exception):
    """The coordinator answered, but not with what was asked for; the link begins anew with a hello."""


class Link:
    """Runs for as long as the agent does. `state` says in one line how things stand."""

    def __init__(self, agent: Agent, urls: tuple[str, ...], token: str, limits: Defaults = DEFAULTS) -> None:
        self._agent = agent
        self._addresses = tuple(_address(url) for url in urls)
        self._headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        self._limits = limits
        self.state = "not connected yet"

    async def run(self) -> None:
        """Until cancelled."""
        turn = 0
        pause = self._limits.beat_s / 4
        while True:
            address = self._addresses[turn % len(self._addresses)]
            turn += 1
            try:
                await self._live(address)
            except* (LinkError, *_LOST) as group:
                reason = "; ".join(str(error) for error in group.exceptions)
                if reason != self.state:
                    log.warning("no coordinator: %s", reason)
                self.state = reason
            await asyncio.sleep(pause)

    async def _live(self, address: Address) -> None:
        async with Connection(address) as poll, Connection(address) as beat:
            await self._hello(beat)
            self.state = f"connected to {address}"
            log.info("%s", self.state)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._poll(poll))
                group.create_task(self._report(beat))

    async def _hello(self, connection: Connection) -> None:
        body = msgspec.json.encode(self._agent.hello())
        response = await self._send(connection, "POST", "/agent/v1/hello", body)
        self._agent.welcomed(_read(response, Welcome))

    async def _poll(self, connection: Connection) -> None:
        while True:
            caller = self._agent.caller()
            query = urlencode({**msgspec.to_builtins(caller), "after": str(self._agent.accepted())})
            timeout = self._limits.document_poll_s + self._limits.agent_request_timeout_s
            response = await self._send(connection, "GET", f"/agent/v1/document?{query}", b"", timeout)
            if response.status == 204:
                continue
            if self._agent.take(_read(response, Document)) is not None:
                # Only a hello names the term and the holder that this node obeys: so a superseded coordinator
                # learns of its successor. One that serves the same again is not asked in a tight loop.
                await self._hello(connection)
                await asyncio.sleep(self._limits.beat_s)

    async def _report(self, connection: Connection) -> None:
        rtt: float | None = None
        overdue = Overdue(self._limits.lease_s)
        while True:
            self._agent.urgent.clear()
            report, rows = self._agent.report(rtt)
            begun = time.monotonic()
            response = await self._send(connection, "POST", "/agent/v1/report", msgspec.json.encode(report))
            rtt = time.monotonic() - begun
            answer = _read(response, ReportAnswer)
            self._agent.acknowledged(report, rows, answer)
            if overdue.note(answer.newest, self._agent.accepted(), begun):
                raise LinkError(
                    f"{connection.address} has document {answer.newest}, but its poll brings nothing newer "
                    f"than {self._agent.accepted()}"
                )
            # A timer that sets the event is half of what wait_for costs, and this is all an idle agent does.
            beat = asyncio.get_running_loop().call_later(self._limits.beat_s, self._agent.urgent.set)
            await self._agent.urgent.wait()
            beat.cancel()

    async def _send(
        self, connection: Connection, method: str, path: str, body: bytes, timeout_s: float | None = None
    ) -> Response:
        response = await connection.request(
            method,
            path,
            headers=self._headers,
            body=body,
            timeout_s=timeout_s or self._limits.agent_request_timeout_s,
        )
        if response.status not in (200, 204):
            raise LinkError(f"{connection.address} answered {response.status}: {_detail(response.body)}")
        return response


class Overdue:
    """Whether a poll is stuck: reports say that there is a newer document, and it does not come.

    Half a connection can die, or a proxy can swallow an answer; the beats alone would look healthy.
    """

    def __init__(self, bound_s: float) -> None:
        self._bound_s = bound_s
        self._stuck_at: Revision | None = None
        self._since = 0.0

    def note(self, newest: Revision, accepted: Revision, now: float) -> bool:
        """True once `accepted` has stood still below `newest` for longer than the bound (seconds)."""
        if newest <= accepted:
            self._stuck_at = None
        elif self._stuck_at != accepted:
            self._stuck_at, self._since = accepted, now
        return self._stuck_at is not None and now - self._since > self._bound_s


def _read(response: Response, kind: type[T]) -> T:
    """What is no answer of a coordinator must not end the agent: a proxy's perhaps, or a later version's."""
    try:
        return msgspec.json.decode(response.body, type=kind)
    except msgspec.MsgspecError as error:
        raise LinkError(f"the answer is not a {kind.__name__}: {error}") from error


def _address(url: str) -> Address:
    parts = urlsplit(url)
    return Address(parts.hostname or "", parts.port or 7071)


def _detail(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body).get("detail", ""))
    except (msgspec.MsgspecError, AttributeError):
        return body[:200].decode(errors="replace")

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
import random
import time
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from sparkd.clock import Clock, SystemClock
from sparkd.errors import CertificateRefused, ClockOff, ExchangeFailed, UsageError
from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd.records.document import Document, Revision
from sparkd.records.names import CLOCK_HEADER, CLOCK_PATH
from sparkd.records.rank import Address
from sparkd.records.report import CertificateAsked, CertificateGiven, ReportAnswer, Welcome
from sparkd_agent.daemon import Agent
from sparkd_agent.http import Connection, Response
from sparkd_agent.identity import Identity, check_coordinator, check_dates

log = logging.getLogger("sparkd.agent")

T = TypeVar("T")


_CONNECTED = "connected to "


class LinkError(Exception):
    """The coordinator answered, but not with what was asked for; the link begins anew with a hello."""


class Link:
    """Runs for as long as the agent does. `state` says in one line how things stand."""

    def __init__(
        self,
        agent: Agent,
        urls: tuple[str, ...],
        *,
        token: str | None,
        identity: Identity | None = None,
        clock: Clock | None = None,
        limits: Defaults = DEFAULTS,
    ) -> None:
        """`urls` are tried in turn. With an `identity` they are spoken to over TLS, else with the token."""
        self._agent = agent
        self._addresses = tuple(_address(url) for url in urls)
        self._headers = {"content-type": "application/json"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        self._identity = identity
        self._clock = clock or SystemClock()
        self._renewal: asyncio.Task[None] | None = None
        self._renew_at = 0.0
        self._limits = limits
        self.state = "not connected yet"

    async def run(self) -> None:
        """Until cancelled."""
        turn = 0
        while True:
            address = self._addresses[turn % len(self._addresses)]
            pause = self._limits.beat_s / 4
            try:
                # A task of its own for each life: Python 3.11.2 (Debian 12) leaves a task that lost a child
                # of its TaskGroup as half cancelled, and the next time-out in it would end it for good.
                await asyncio.create_task(self._live(address))
            except* (LinkError, ExchangeFailed) as group:
                reason = "; ".join([await self._explain(address, error) for error in group.exceptions])
                if any(isinstance(error, CertificateRefused) for error in group.exceptions):
                    pause = self._limits.hello_retry_s
                if reason != self.state:
                    log.warning("no coordinator: %s", reason)
                if not self.state.startswith(_CONNECTED):
                    turn += 1  # one that was there a moment ago is asked first
                self.state = reason
            await asyncio.sleep(pause)

    async def _explain(self, address: Address, error: Exception) -> str:
        """Whoever is wrong about the date, the coordinator can say by how much."""
        if isinstance(error, ClockOff):
            try:
                async with self._connection(address, dates=False) as connection:
                    response = await self._send(connection, "POST", CLOCK_PATH, b"")
                    return _detail(response.body)
            except (LinkError, ExchangeFailed) as more:
                return str(more if isinstance(more, CertificateRefused) else error)
        return str(error)

    def _connection(self, address: Address, *, dates: bool = True) -> Connection:
        def check(certificate: Mapping[str, Any]) -> None:
            check_coordinator(certificate)
            if dates:
                check_dates(certificate, self._clock.now().wall)

        if self._identity is None:
            return Connection(address)
        return Connection(address, ssl=self._identity.context, check=check)

    async def _live(self, address: Address) -> None:
        async with self._connection(address) as poll, self._connection(address) as beat:
            await self._hello(beat)
            self.state = f"{_CONNECTED}{address}"
            log.info("%s", self.state)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._poll(poll))
                group.create_task(self._report(beat))

    async def _hello(self, connection: Connection) -> None:
        slow = self._agent.slow_facts
        hello = self._agent.hello(await slow.fabric(), await slow.images())
        body = msgspec.json.encode(hello)
        response = await self._send(connection, "POST", "/agent/v1/hello", body)
        self._agent.welcomed(_read(response, Welcome))

    async def _poll(self, connection: Connection) -> None:
        shown = self._shown()
        while True:
            if shown != self._shown():
                connection.close()
                shown = self._shown()
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
        shown = self._shown()
        while True:
            if shown != self._shown():
                connection.close()
                shown = self._shown()
            self._agent.urgent.clear()
            report, rows = self._agent.report(rtt)
            begun = time.monotonic()
            response = await self._send(connection, "POST", "/agent/v1/report", msgspec.json.encode(report))
            rtt = time.monotonic() - begun
            answer = _read(response, ReportAnswer)
            self._agent.acknowledged(report, rows, answer)
            if answer.renew:
                self._begin_renewal(connection.address)
            if overdue.note(answer.newest, self._agent.accepted(), begun):
                raise LinkError(
                    f"{connection.address} has document {answer.newest}, but its poll brings nothing newer "
                    f"than {self._agent.accepted()}"
                )
            # A timer that sets the event is half of what wait_for costs, and this is all an idle agent does.
            beat = asyncio.get_running_loop().call_later(self._limits.beat_s, self._agent.urgent.set)
            await self._agent.urgent.wait()
            beat.cancel()

    # The certificate.

    def _shown(self) -> int:
        """Of the certificate: a connection that showed an earlier one is made anew."""
        return self._identity.version if self._identity is not None else 0

    def _begin_renewal(self, address: Address) -> None:
        """Beside the beats, and not again for a while if it fails."""
        busy = self._renewal is not None and not self._renewal.done()
        if self._identity is None or busy or time.monotonic() < self._renew_at:
            return
        pause = self._limits.certificate_retry_s
        self._renew_at = time.monotonic() + pause + random.uniform(0, pause)  # noqa: S311 - spreads nodes out
        self._renewal = asyncio.get_running_loop().create_task(self._renew(self._identity, address))

    async def _renew(self, identity: Identity, address: Address) -> None:
        try:
            asked = CertificateAsked(self._agent.config.node_id, await identity.request())
            async with self._connection(address) as connection:
                body = msgspec.json.encode(asked)
                response = await self._send(connection, "POST", "/agent/v1/certificate", body)
            identity.install(_read(response, CertificateGiven).certificate)
        except (LinkError, ExchangeFailed, UsageError) as error:
            log.warning("the certificate of this node was not renewed: %s", error)
        else:
            log.info("the certificate of this node was renewed")

    async def _send(
        self, connection: Connection, method: str, path: str, body: bytes, timeout_s: float | None = None
    ) -> Response:
        headers = {**self._headers, CLOCK_HEADER: str(self._clock.now().wall)}
        response = await connection.request(
            method,
            path,
            headers=headers,
            body=body,
            timeout_s=timeout_s or self._limits.agent_request_timeout_s,
        )
        if response.status == CertificateRefused.http_status:
            raise CertificateRefused(_detail(response.body))
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

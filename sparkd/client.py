"""The API client: what a program needs to talk to a coordinator. Synchronous, typed."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from sparkd.clock import Clock, SystemClock
from sparkd.errors import (
    Conflict,
    CoordinatorUnreachable,
    IntentDiffers,
    NotFound,
    ProfileError,
    SparkdError,
    Unauthorized,
    Unavailable,
    UsageError,
)
from sparkd.records.answer import CommandAnswer, LogLine, Membership, NodeEnrolled, Problem, RankStacks
from sparkd.records.collective import CollectiveTest
from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd.records.event import Event
from sparkd.records.fabric import FabricTest, FabricView
from sparkd.records.status import DeploymentStatus, NodeStatus, Status
from sparkd.sse import read_messages
from sparkd.transport import HttpTransport, Response, Transport

if TYPE_CHECKING:  # `status` should not pay for the records of a plan
    from sparkd.records.hashing import HashLine
    from sparkd.records.intent import Intent
    from sparkd.records.plan import Plan
    from sparkd.records.preflight import Preflight

T = TypeVar("T")


class Client:
    """Every method raises the error of `sparkd/errors.py` that the coordinator answered with, or
    CoordinatorUnreachable when none answered. Deployments are named as in `sparkd up --name`.
    """

    def __init__(
        self,
        base_url: str,
        token: str | None,
        *,
        transport: Transport | None = None,
        authority_file: Path | None = None,
        limits: Defaults = DEFAULTS,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._token = token
        self._transport = transport or HttpTransport(self.base_url, limits, authority_file)
        self._limits = limits
        self._clock = clock or SystemClock()
        self._sleep = sleep

    def status(self) -> Status:
        return self._get("/v1/status", Status)

    def nodes(self) -> tuple[NodeStatus, ...]:
        return self._get("/v1/nodes", tuple[NodeStatus, ...])

    def fabric(self, nodes: Sequence[str] = ()) -> FabricView:
        """What a gang on these nodes, or on all, would use."""
        return self._get(f"/v1/fabric{_query(nodes=','.join(nodes) or None)}", FabricView)

    def fabric_test(self, nodes: Sequence[str] = ()) -> FabricTest:
        """Have these nodes, or all, call each other; takes some seconds."""
        return _decode(self._send("POST", "/v1/fabric/test", {"nodes": nodes}).read(), FabricTest)

    def collectives(
        self, nodes: Sequence[str] = (), *, size: int | None = None, image: str | None = None
    ) -> Iterator[CollectiveTest]:
        """Each collective probe as it goes on, the last one of each `over`. It ends when nobody listens."""
        body: dict[str, object] = {"nodes": list(nodes)}
        body |= {} if size is None else {"size": size}
        body |= {} if image is None else {"image": image}
        headers = {"accept": "application/x-ndjson"}
        response = self._send("POST", "/v1/fabric/collectives", body, headers=headers, stream=True)
        return (_decode(line, CollectiveTest) for line in response.lines() if line)

    def deployment(self, name: str) -> DeploymentStatus:
        return self._get(_deployment(name), DeploymentStatus)

    def up(self, name: str, intent: "Intent") -> CommandAnswer:
        return self._command("PUT", _deployment(name), {"intent": intent})

    def down(self, name: str) -> CommandAnswer:
        return self._command("DELETE", _deployment(name), None)

    def restart(self, name: str, generation: int) -> CommandAnswer:
        """`generation` is the one the caller saw: repeating the request does no harm."""
        return self._command("POST", f"{_deployment(name)}/restart", {"generation": generation})

    def drain(self, node: str) -> tuple[NodeStatus, ...]:
        """Give the node no new rank any more; returns all nodes."""
        return self._drained(node, "drain")

    def resume(self, node: str) -> tuple[NodeStatus, ...]:
        return self._drained(node, "resume")

    def _drained(self, node: str, verb: str) -> tuple[NodeStatus, ...]:
        body = self._send("POST", f"/v1/nodes/{quote(node, safe='')}/{verb}", {}).read()
        return _decode(body, tuple[NodeStatus, ...])

    def membership(self) -> Membership:
        """Who belongs to the coordinator. Raises Conflict when it has no certificates to give."""
        return self._get("/v1/membership", Membership)

    def enrol_node(self, node_id: str, name: str, csr: str) -> NodeEnrolled:
        """Sign for a node, and expect it from now on; the same request again does no harm."""
        body = {"id": node_id, "name": name, "csr": csr}
        return _decode(self._send("POST", "/v1/nodes", body).read(), NodeEnrolled)

    def remove_node(self, name: str) -> None:
        self._send("DELETE", f"/v1/nodes/{quote(name, safe='')}").read()

    def plan(self, name: str, intent: "Intent") -> "Plan":
        from sparkd.records.plan import Plan  # noqa: PLC0415  see above

        body = self._send("POST", "/v1/plan", {"name": name, "intent": intent}).read()
        return _decode(body, Plan)

    def preflight(self, name: str | None = None, intent: "Intent | None" = None) -> "Preflight":
        """What speaks against this launch; without one, against any on the nodes that are there."""
        from sparkd.records.preflight import Preflight  # noqa: PLC0415  see above

        asked = {} if intent is None else {"name": name, "intent": intent}
        return _decode(self._send("POST", "/v1/preflight", asked).read(), Preflight)

    def hash_model(self, name: str, intent: "Intent") -> "Iterator[HashLine]":
        """Have all bytes of a launch's models read on its nodes; ends when nobody asks for the next line."""
        from sparkd.records.hashing import HashLine  # noqa: PLC0415  see above

        headers = {"accept": "application/x-ndjson"}
        asked = {"name": name, "intent": intent}
        response = self._send("POST", "/v1/preflight/hash", asked, headers=headers, stream=True)
        return (_decode(line, HashLine) for line in response.lines() if line)

    def incidents(self, name: str) -> list[dict[str, Any]]:
        return self._get(f"{_deployment(name)}/incidents", list[dict[str, Any]])

    def stacks(self, name: str, *, rank: int | None = None) -> list[RankStacks]:
        """Of all ranks that run, or of one."""
        return self._get(f"{_deployment(name)}/stacks{_query(rank=rank)}", list[RankStacks])

    def recent_events(self, *, limit: int, deployment: str | None = None) -> tuple[Event, ...]:
        """The last `limit` events, oldest first."""
        query = _query(follow="false", limit=limit, deployment=deployment)
        return tuple(Event.from_wire(body) for body in self._get(f"/v1/events{query}", list[dict[str, Any]]))

    def events(self, *, deployment: str | None = None, after: str | None = None) -> Iterator[Event | Status]:
        """Events as they happen, from the one after `after` on; resumes by itself.

        A Status stands for a gap: the coordinator no longer knew where we were. Raises
        CoordinatorUnreachable after `client_outage_s` without a coordinator.
        """
        lost_at: float | None = None
        while True:
            headers = {"accept": "text/event-stream"} | ({"last-event-id": after} if after else {})
            try:
                response = self._send(
                    "GET", f"/v1/events{_query(deployment=deployment)}", headers=headers, stream=True
                )
                lost_at = None
                for message in read_messages(response.lines()):
                    after = message.id or after
                    if message.event == "reset":
                        yield _decode(message.data, Status)
                    else:
                        yield Event.from_wire(_decode(message.data, dict[str, Any]))
            except Unavailable:
                now = self._clock.now().mono
                lost_at = now if lost_at is None else lost_at
                if now - lost_at >= self._limits.client_outage_s:
                    raise
            self._sleep(self._limits.client_poll_s)

    def logs(
        self,
        name: str,
        *,
        rank: int | None = None,
        generation: int | None = None,
        since: float | None = None,
        follow: bool = False,
    ) -> Iterator[LogLine]:
        """Lines of one rank's log, or of all. `since` is wall clock, seconds since 1970."""
        query = _query(rank=rank, generation=generation, since=since, follow="true" if follow else None)
        response = self._send(
            "GET",
            f"{_deployment(name)}/logs{query}",
            headers={"accept": "application/x-ndjson"},
            stream=True,
        )
        return (_decode(line, LogLine) for line in response.lines() if line)

    def _get(self, target: str, kind: type[T]) -> T:
        return _decode(self._send("GET", target).read(), kind)

    def _command(self, method: str, target: str, body: object) -> CommandAnswer:
        return _decode(self._send(method, target, body).read(), CommandAnswer)

    def _send(
        self,
        method: str,
        target: str,
        body: object = None,
        *,
        headers: dict[str, str] | None = None,
        stream: bool = False,
    ) -> Response:
        every = {"accept": "application/json", "connection": "close"}
        if self._token:
            every["authorization"] = f"Bearer {self._token}"
        content = None
        if body is not None:
            content = msgspec.json.encode(body)
            every["content-type"] = "application/json"
        response = self._transport.send(method, target, every | (headers or {}), content, stream=stream)
        if response.status >= 400:
            raise error_of(_problem(response.status, response.read()))
        return response


def error_of(problem: Problem) -> SparkdError:
    """The error that a problem document stands for: by its code, else by its HTTP status."""
    text = problem.detail or problem.title or f"the coordinator answered {problem.status}"
    kind = _by_code(problem.code) or _BY_STATUS.get(problem.status, SparkdError)
    if issubclass(kind, IntentDiffers):
        return kind(text, problem.differences)
    if issubclass(kind, ProfileError):
        return kind(problem.problems or (text,))
    return kind(text)


_BY_STATUS: dict[int, type[SparkdError]] = {
    400: UsageError,
    401: Unauthorized,
    403: Unauthorized,
    404: NotFound,
    409: Conflict,
    422: UsageError,
    503: Unavailable,
}


def _by_code(code: str) -> type[SparkdError] | None:
    kinds: list[type[SparkdError]] = [SparkdError]
    while kinds:
        kind = kinds.pop()
        if kind.code == code:
            return kind
        kinds.extend(kind.__subclasses__())
    return None


def _problem(status: int, body: bytes) -> Problem:
    """Something between us and the coordinator may answer in its own words: shown, but not at length."""
    try:
        return msgspec.json.decode(body, type=Problem)
    except msgspec.DecodeError:
        return Problem(status=status, detail=f"HTTP {status}: {body[:200].decode(errors='replace')}")


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise CoordinatorUnreachable(
            f"what answers there is no coordinator of this version: {error}"
        ) from error


def _deployment(name: str) -> str:
    return f"/v1/deployments/{quote(name, safe='')}"


def _query(**values: object) -> str:
    given = {key: value for key, value in values.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from sparkd import errors
from sparkd.client import Client, error_of
from sparkd.clock import Instant
from sparkd.records.answer import Problem
from sparkd.records.event import Event
from sparkd.records.status import Status

EMPTY = {"deployments": [], "nodes": []}


@dataclass
class Reply:
    content: bytes
    status: int = 200
    breaks_off: bool = False

    def read(self) -> bytes:
        return self.content

    def lines(self) -> Iterator[bytes]:
        yield from self.content.split(b"\n")
        if self.breaks_off:
            raise errors.CoordinatorUnreachable("broke off")

    def close(self) -> None:
        pass


@dataclass
class Script:
    """A transport that gives these replies in turn, and keeps what was sent."""

    replies: list[Reply | Exception]
    sent: list[tuple[str, str, dict[str, str], Any]] = field(default_factory=list)

    def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, *, stream: bool
    ) -> Reply:
        self.sent.append((method, target, dict(headers), msgspec.json.decode(body) if body else None))
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply


@dataclass
class Time:
    now_s: float = 0.0

    def now(self) -> Instant:
        return Instant(self.now_s, self.now_s)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def client(*replies: Reply | Exception) -> tuple[Client, Script]:
    script, time = Script(list(replies)), Time()
    return Client("http://x:1", "t0ken", transport=script, clock=time, sleep=time.sleep), script


def every_error() -> list[type[errors.SparkdError]]:
    kinds, found = [errors.SparkdError], []
    while kinds:
        kind = kinds.pop()
        found.append(kind)
        kinds.extend(kind.__subclasses__())
    return found


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.code)
def test_every_code_becomes_its_error_again(kind: type[errors.SparkdError]) -> None:
    error = error_of(Problem(status=kind.http_status, code=kind.code, detail="it says why"))
    assert type(error) is kind
    assert str(error) == "it says why"


def test_differences_and_problems_are_kept() -> None:
    differs = error_of(Problem(409, code="intent-differs", detail="other", differences=("tp: 2 -> 4",)))
    assert isinstance(differs, errors.IntentDiffers)
    assert differs.differences == ("tp: 2 -> 4",)
    invalid = error_of(Problem(422, code="profile-invalid", problems=("a.yaml:1: tp: bad",)))
    assert isinstance(invalid, errors.ProfileError)
    assert invalid.problems == ("a.yaml:1: tp: bad",)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, errors.Unauthorized), (404, errors.NotFound), (409, errors.Conflict), (503, errors.Unavailable)],
)
def test_a_proxy_that_answers_in_its_own_words_is_understood_by_status(
    status: int, kind: type[errors.SparkdError]
) -> None:
    asked, _ = client(Reply(b"<html>Bad thing</html>", status))
    with pytest.raises(kind, match="Bad thing"):
        asked.status()


def test_requests_carry_the_token_and_quote_names() -> None:
    asked, script = client(Reply(msgspec.json.encode(EMPTY)), Reply(b"", 404))
    assert asked.status() == Status((), ())
    assert script.sent[0][2]["authorization"] == "Bearer t0ken"
    with pytest.raises(errors.NotFound):
        asked.deployment("../status")
    assert script.sent[1][1] == "/v1/deployments/..%2Fstatus"


def test_something_else_on_that_port_is_no_coordinator() -> None:
    asked, _ = client(Reply(b"<html>hello</html>"))
    with pytest.raises(errors.CoordinatorUnreachable, match="no coordinator of this version"):
        asked.status()


def sse(*events: Event) -> bytes:
    return b"".join(
        f"id: {one.id}\nevent: {one.kind}\ndata: ".encode() + msgspec.json.encode(one.wire()) + b"\n\n"
        for one in events
    )


def test_events_resume_after_the_last_one_and_show_a_gap() -> None:
    first = Event("1-7", 1.0, "phase", "why", "tiny", from_="pending", to="loading")
    second = Event("2-1", 2.0, "phase", "why", "tiny", from_="loading", to="ready")
    reset = b"id: 2-0\nevent: reset\ndata: " + msgspec.json.encode(EMPTY) + b"\n\n"
    asked, script = client(
        Reply(sse(first), breaks_off=True), errors.CoordinatorUnreachable("gone"), Reply(reset + sse(second))
    )
    stream = asked.events(deployment="tiny")
    assert [next(stream) for _ in range(3)] == [first, Status((), ()), second]
    assert [sent[1] for sent in script.sent] == ["/v1/events?deployment=tiny"] * 3
    assert [sent[2].get("last-event-id") for sent in script.sent] == [None, "1-7", "1-7"]


def test_events_give_up_on_a_coordinator_that_stays_away() -> None:
    asked, _ = client(*[errors.CoordinatorUnreachable("gone")] * 1000)
    with pytest.raises(errors.CoordinatorUnreachable):
        next(asked.events())


def test_event_json_says_from() -> None:
    event = Event("1-7", 1.0, "phase", "why", from_="pending", to="loading")
    body = event.wire()
    assert body["from"] == "pending"
    assert "from_" not in body
    assert Event.from_wire(body) == event

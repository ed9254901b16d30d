from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from sparkd.clock import Instant
from sparkd.coordinator.entrance import Entrance, in_words
from sparkd.coordinator.peer import Peer, read_peer
from sparkd.enrol.authority import make_authority
from sparkd.enrol.roster import LiveRoster, enrol_node, revoke_node
from sparkd.errors import CertificateRefused, ClockOff
from sparkd.records.defaults import DEFAULTS

NOW = 1_800_000_000.0
DAY = 86_400.0
YEAR = 365 * DAY
GRACE = DEFAULTS.clock_warn_s


class Stopped:
    def now(self) -> Instant:
        return Instant(0.0, NOW)


@pytest.fixture
def entrance(tmp_path: Path) -> Entrance:
    enrol_node(tmp_path, "a", "spark-a")
    return Entrance(make_authority(tmp_path, NOW), LiveRoster(tmp_path), Stopped(), DEFAULTS)


def scope(peer: Peer | None, clock: float | None = None) -> dict[str, Any]:
    headers = [] if clock is None else [(b"x-sparkd-clock", str(clock).encode())]
    return {"type": "http", "path": "/agent/v1/hello", "state": {"peer": peer}, "headers": headers}


@pytest.mark.parametrize(
    ("begin", "end", "fits"),
    [
        (NOW - DAY, NOW + DAY, True),
        (NOW + GRACE - 1, NOW + YEAR, True),
        (NOW + GRACE + 1, NOW + YEAR, False),
        (NOW - YEAR, NOW - GRACE + 1, True),
        (NOW - YEAR, NOW - GRACE - 1, False),
    ],
)
def test_dates_are_judged_with_a_grace(entrance: Entrance, begin: float, end: float, fits: bool) -> None:
    asked = scope(Peer("a", begin, end))
    if fits:
        entrance.gate(asked)
        return
    with pytest.raises(CertificateRefused, match="certificate refused"):
        entrance.gate(asked)


@pytest.mark.parametrize("peer", [None, Peer(None, NOW - DAY, NOW + DAY)])
def test_who_names_no_node_stays_outside(entrance: Entrance, peer: Peer | None) -> None:
    with pytest.raises(CertificateRefused, match="no node's"):
        entrance.gate(scope(peer))


@pytest.mark.parametrize("clock", [None, NOW, NOW + GRACE - 1])
def test_a_clock_that_is_right_is_not_blamed(entrance: Entrance, clock: float | None) -> None:
    with pytest.raises(CertificateRefused, match="sparkd nodes add") as error:
        entrance.gate(scope(Peer("a", NOW - 2 * YEAR, NOW - YEAR), clock))
    assert not isinstance(error.value, ClockOff)


def test_a_clock_that_is_wrong_is(entrance: Entrance) -> None:
    with pytest.raises(ClockOff, match=r"clock of spark-a is off by \+30 d against"):
        entrance.gate(scope(Peer("a", NOW + DAY, NOW + YEAR), NOW + 30 * DAY))
    assert entrance.verdicts["a"].id == "CLOCK_OFF"


@pytest.mark.parametrize("clock", ["nan", "inf", "-inf", "1e400", "x"])
def test_a_told_clock_that_is_none(entrance: Entrance, clock: str) -> None:
    asked = scope(Peer("a", NOW - 2 * YEAR, NOW - YEAR))
    asked["headers"] = [(b"x-sparkd-clock", clock.encode())]
    with pytest.raises(CertificateRefused):
        entrance.gate(asked)


def test_a_list_that_somebody_else_changes_counts_at_the_next_request(
    entrance: Entrance, tmp_path: Path
) -> None:
    asked = scope(Peer("a", NOW - DAY, NOW + YEAR))
    entrance.gate(asked)
    revoke_node(tmp_path, "a", NOW)
    with pytest.raises(CertificateRefused, match="spark-a was removed"):
        entrance.gate(asked)


@pytest.mark.parametrize(
    ("age", "wanted"), [(0.0, False), (243 * DAY, False), (245 * DAY, True), (YEAR, True)]
)
def test_renewal_begins_at_two_thirds(entrance: Entrance, age: float, wanted: bool) -> None:
    begin = NOW - age
    request = Request(scope(Peer("a", begin, begin + YEAR + DAY)))
    assert entrance.wants_renewal(request) is wanted


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "+0 s"), (-7500, "-2 h 5 min"), (90061, "+1 d 1 h"), (-59, "-59 s"), (86_401, "+1 d 1 s")],
)
def test_a_span_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


@pytest.mark.parametrize(
    ("names", "node"),
    [
        ((("URI", "sparkd://node/a1"),), "a1"),
        ((("URI", "sparkd://node/a1"), ("URI", "sparkd://node/b1")), None),
        ((("DNS", "sparkd://node/a1"),), None),
        ((("URI", "sparkd://coordinator"),), None),
        ((("URI", "sparkd://node/"),), None),
        ((("URI", "sparkd://node/a/b"),), None),
        ((("URI", "https://node/a1"),), None),
        ((), None),
    ],
)
def test_the_node_that_a_certificate_names(names: tuple[tuple[str, str], ...], node: str | None) -> None:
    dates = {"notBefore": "Nov 29 12:00:00 2026 GMT", "notAfter": "Nov 30 12:00:00 2027 GMT"}
    assert read_peer({"subjectAltName": names, **dates}).node == node

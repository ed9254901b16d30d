"""What calls between nodes mean."""

from typing import Any

import pytest

from sparkd.fabric.picture import call_rows
from sparkd.fabric.reach import judge_calls
from sparkd.records.fabric import Call, Reached
from sparkd.records.verdict import Verdict

LATE = "no answer within 1.5 s"


def call(source: str, target: str, *, heard: bool | None = True, mtu: int | None = 9000, **how: Any) -> Call:
    given = {"rtt_s": 2e-5, "udp": True, "mtu": 9000, "neighbour": True} | how
    return Call(source, target, Reached(target, **given), heard=heard, wanted_mtu=mtu)


def judged(*calls: Call) -> list[Verdict]:
    names = list(dict.fromkeys(one.source for one in calls))
    return list(judge_calls(names, {(one.source, one.target): one for one in calls}))


def test_all_is_well() -> None:
    assert judged(call("a", "b"), call("b", "a")) == []
    # Loopback and other links without an MTU that is known.
    assert judged(call("a", "b", mtu=None, neighbour=None), call("b", "a")) == []


@pytest.mark.parametrize("reason", [LATE, "connection refused", "no route to host"])
def test_connections_in_one_direction_only_are_a_firewall(reason: str) -> None:
    (verdict,) = judged(call("a", "b", tcp=reason, heard=False, udp=False), call("b", "a"))
    assert (verdict.id, verdict.node) == ("FIREWALL", "b")
    assert f"a to b: {reason}" in verdict.evidence


def test_a_firewall_on_both_sides() -> None:
    """Datagrams pass, connections do not."""
    (verdict,) = judged(call("a", "b", tcp=LATE), call("b", "a", tcp=LATE))
    assert (verdict.id, verdict.node) == ("FIREWALL", None)


@pytest.mark.parametrize(
    ("heard_at_b", "heard_at_a", "a_knows", "b_knows"),
    [
        (False, True, True, True),
        (False, False, True, False),
        (None, None, True, False),
        (False, True, None, None),
    ],
)
def test_a_cut_in_one_direction(
    heard_at_b: bool | None, heard_at_a: bool | None, a_knows: bool | None, b_knows: bool | None
) -> None:
    """What a sends is lost: b cannot learn a's link address, while a learns b's from its questions."""
    to = call("a", "b", tcp=LATE, udp=False, heard=heard_at_b, neighbour=a_knows)
    back = call("b", "a", tcp=LATE, udp=False, heard=heard_at_a, neighbour=b_knows)
    for calls in ((to, back), (back, to)):
        (verdict,) = judged(*calls)
        assert (verdict.id, verdict.node) == ("FABRIC_ONE_WAY", "a")
        assert "nothing that a sends reaches b" in verdict.title


@pytest.mark.parametrize("known", [False, True, None])
def test_no_path_at_all(*, known: bool | None) -> None:
    """A link address that is still known proves nothing."""
    broken = {"tcp": "no route to host", "heard": False, "udp": False, "neighbour": known}
    (verdict,) = judged(call("a", "b", **broken), call("b", "a", **broken))
    assert verdict.id == "FABRIC_NO_PATH"


@pytest.mark.parametrize(("passed", "words"), [(1500, "1500 bytes do"), (None, "not even 1500")])
def test_large_packets_are_lost(passed: int | None, words: str) -> None:
    small = Call("a", "b", Reached("b", rtt_s=1e-5, udp=True, mtu=passed), heard=True, wanted_mtu=9000)
    (verdict,) = judged(small, call("b", "a"))
    assert (verdict.id, verdict.node) == ("MTU_PATH", "a")
    assert words in verdict.evidence


def test_datagrams_that_are_filtered_say_nothing_of_the_mtu() -> None:
    filtered = Call("a", "b", Reached("b", rtt_s=1e-5, udp=False), heard=True, wanted_mtu=9000)
    assert judged(filtered, call("b", "a")) == []


def test_a_node_that_does_not_answer() -> None:
    (verdict,) = judged(Call("a", "b", None, heard=False), call("b", "a"))
    assert (verdict.id, verdict.node) == ("FABRIC_UNTESTED", "a")
    (verdict,) = judged(call("a", "b"), Call("b", "a", None, heard=False))
    assert verdict.node == "b"


def test_a_node_that_could_not_listen_is_the_silent_one() -> None:
    """Nobody calls it, and it calls nobody."""
    (verdict,) = judged(Call("a", "b", None, heard=None), Call("b", "a", None, heard=False))
    assert (verdict.id, verdict.node) == ("FABRIC_UNTESTED", "b")


def test_every_pair_is_judged() -> None:
    bad = {"tcp": LATE, "heard": False, "udp": False, "neighbour": False}
    calls = [
        call(here, there, **(bad if "c" in (here, there) else {}))
        for here in "abc"
        for there in "abc"
        if here != there
    ]
    assert [verdict.title for verdict in judged(*calls)] == [
        f"{one} and c do not reach each other over the fabric" for one in "ab"
    ]


def test_rows_for_people() -> None:
    assert call_rows([call("a", "b"), call("b", "a", tcp=LATE), Call("b", "c", None)]) == [
        ("a", "-> b", "connected, 20 us", "packets of 9000 bytes"),
        ("b", "-> a", LATE, ""),
        ("b", "-> c", "not tested", ""),
    ]

from dataclasses import dataclass, replace

import pytest

from sparkd.coordinator.guests import Guests
from sparkd.records.defaults import DEFAULTS

LIMITS = replace(
    DEFAULTS, connections=6, connections_per_peer=4, connections_waiting=5, connections_waiting_per_peer=2
)


@dataclass(eq=False)
class Played:
    peer: str
    is_waiting: bool = True
    dropped: bool = False

    def drop(self) -> None:
        self.dropped = True


def test_the_oldest_silent_one_of_an_address_makes_room_for_the_next() -> None:
    guests = Guests(LIMITS)
    first, second, third = (Played("a") for _ in range(3))
    assert all(guests.enter(one) for one in (first, second, third))
    assert [one.dropped for one in (first, second, third)] == [True, False, False]
    assert len(guests) == 2


def test_one_that_has_spoken_is_never_dropped() -> None:
    guests = Guests(LIMITS)
    busy = [Played("a", is_waiting=False) for _ in range(4)]
    assert all(guests.enter(one) for one in busy)
    assert not guests.enter(Played("a"))
    assert not any(one.dropped for one in busy)
    assert guests.enter(Played("b")), "another address has room of its own"


def test_a_silent_one_makes_room_for_one_more_of_a_busy_address() -> None:
    guests = Guests(LIMITS)
    silent = Played("a")
    for one in (silent, *(Played("a", is_waiting=False) for _ in range(3))):
        assert guests.enter(one)
    assert guests.enter(Played("a"))
    assert silent.dropped


def test_the_whole_server_is_bounded_too() -> None:
    guests = Guests(LIMITS)
    strangers = [Played(f"s{number}") for number in range(20)]
    for one in strangers:
        assert guests.enter(one)
        assert len(guests) <= LIMITS.connections_waiting
    assert [one.dropped for one in strangers] == [True] * 15 + [False] * 5


@pytest.mark.parametrize("entered", [True, False])
def test_leaving_twice_does_no_harm(entered: bool) -> None:
    guests = Guests(LIMITS)
    one = Played("a")
    if entered:
        guests.enter(one)
    guests.leave(one)
    guests.leave(one)
    assert len(guests) == 0
    assert all(guests.enter(other) for other in (Played("a"), Played("a")))

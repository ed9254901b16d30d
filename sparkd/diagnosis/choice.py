"""Which of several things that went wrong is the cause: the kind first, the time second (design §8).

Whoever is killed dies without a word, and all others cry out at once: on a real GPU a survivor's NCCL error
comes 1 ms after the kill, the victim's launcher speaks of it after 26 ms.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from sparkd.records.defaults import DEFAULTS

T = TypeVar("T")

DEATH: Final = 0
"""A process that ended by a signal or for a reason that it told; a line of the kernel or the driver; a
stopped process; a node that is gone."""
EXIT: Final = 1
"""A process that gave up with an error and without a reason."""
ERROR: Final = 2
"""An exception that is no collective, of a process that nobody saw ending."""
COLLECTIVE: Final = 3
"""NCCL, gloo, TCPStore, an RPC that timed out, `EngineDeadError`: how the others learn of a death."""
QUIET: Final = 4
"""An end without an error, or of which nobody knows anything."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When, by the coordinator's clock, right within `error_s`; and of which of the kinds above."""

    kind: int
    at: float | None
    error_s: float = 0.0


def choose(
    candidates: Sequence[T],
    moment_of: Callable[[T], Moment],
    within_s: float = DEFAULTS.cause_window_s,
) -> tuple[T, ...]:
    """The cause; first the one to name, then those of its kind that came closer to it than the clocks tell.

    A lower kind is the cause only if no higher one lies within `within_s` and the errors of both clocks.
    Empty without candidates. What has no time is told by its kind alone, and is close to everything.
    """
    if not candidates:
        return ()
    moments = [(moment_of(one), one) for one in candidates]
    best = min(moments, key=lambda pair: (_at(pair[0]), pair[0].kind))
    while True:
        near = [pair for pair in moments if _apart(pair[0], best[0]) <= within_s]
        higher = min(near, key=lambda pair: (pair[0].kind, _at(pair[0])))
        if higher[0].kind >= best[0].kind:
            break
        best = higher
    same = [pair for pair in moments if pair[1] is not best[1] and pair[0].kind == best[0].kind]
    return (best[1], *(one for moment, one in same if _apart(moment, best[0]) <= 0))


def _at(moment: Moment) -> float:
    return float("inf") if moment.at is None else moment.at


def _apart(one: Moment, other: Moment) -> float:
    """Seconds between them, at the least; negative where the clocks could swap them."""
    if one.at is None or other.at is None:
        return 0.0
    return abs(one.at - other.at) - one.error_s - other.error_s

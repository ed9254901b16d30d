"""The record of one fall: what fell first, why, and the last minutes around it."""

from dataclasses import dataclass
from typing import Literal

from sparkd.records.answer import RankStacks
from sparkd.records.explanation import Explanation
from sparkd.records.fall import Fall
from sparkd.records.verdict import Verdict

Kind = Literal["sample", "act", "kernel", "exit", "line", "event"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the timeline. `at` is the coordinator's wall clock, right within `error_s`."""

    at: float
    kind: Kind
    text: str
    node: str | None = None
    rank: int | None = None
    error_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Incident:
    at: float
    """When it was written; what is learnt later replaces it."""
    generation: int
    fall: Fall
    verdicts: tuple[Verdict, ...] = ()
    explanation: Explanation | None = None
    timeline: tuple[Entry, ...] = ()
    stacks: tuple[RankStacks, ...] = ()
    """Where a gang stood that was frozen or did not get on, asked before it was ended."""

"""What a rule is: data, and a small pure matcher."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from sparkd.diagnosis.evidence import Evidence, Line
from sparkd.diagnosis.lines import is_of_a_user
from sparkd.records.verdict import Severity, Verdict

RetryClass = Literal["normal", "memory", "never"]
"""Of the restart budget: `memory` is tried once more, what `never` can be cured by a retry is not."""

Kind = Literal["end", "error", "exit", "collective", "state"]
"""What a finding says of a fall (design §8): why something was ended, as the kernel, the driver or a part of
sparkd tells it; an exception; a process's bare exit or signal; a collective that failed, which is how others
learn of a death. A `state` was so before and after: it may stop a launch, and never ends a gang by itself.
"""


@dataclass(frozen=True, slots=True)
class Found:
    """One finding. What is left empty is the rule's."""

    evidence: str
    """What was seen: the line, or the numbers, each with its name."""
    rank: int | None = None
    node: str | None = None
    at: float | None = None
    error_s: float = 0.0
    title: str = ""
    cause: str = ""
    remedy: str = ""
    severity: Severity | None = None


Match = Callable[[Evidence], Iterable[Found]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    id: str
    """The file's name. Upper case, and never changed once it was told to anybody."""
    title: str
    """What is wrong, in the words of who owns the machines."""
    cause: str
    """How it comes about."""
    remedy: str
    """What a person does now."""
    match: Match
    kind: Kind = "error"
    severity: Severity = Severity.BLOCK
    retry: RetryClass = "normal"
    prevents: tuple[str, ...] = ()
    """`KEY=VALUE` for `--set`, where that keeps it from happening again."""
    needles: tuple[str, ...] = ()
    """For a matcher of its own that reads lines: it is only sure to see those that hold one of these."""
    reference: str = ""
    """Where it was reported or measured."""

    @property
    def line_needles(self) -> tuple[str, ...]:
        return self.needles or getattr(self.match, "needles", ())

    def verdict(self, found: Found) -> Verdict:
        return Verdict(
            self.id,
            found.severity or self.severity,
            found.title or self.title,
            evidence=found.evidence,
            cause=found.cause or self.cause,
            remedy=found.remedy or self.remedy,
            node=found.node,
            rank=found.rank,
        )


def on_line(line: Line, *, title: str = "", cause: str = "", remedy: str = "") -> Found:
    """A finding at one line."""
    return Found(
        line.text, line.rank, line.node, line.at, line.error_s, title=title, cause=cause, remedy=remedy
    )


@dataclass(frozen=True, slots=True)
class OnLine:
    """A line that holds one of `needles` (plain text) and matches `pattern`, if there is one."""

    needles: tuple[str, ...]
    pattern: re.Pattern[str] | None = None
    of_kernel: bool = False

    def __call__(self, evidence: Evidence) -> Iterator[Found]:
        for line in evidence.kernel if self.of_kernel else evidence.lines:
            if self.matches(line.text) and not is_of_a_user(line.text):
                yield on_line(line)

    def matches(self, text: str) -> bool:
        if not any(needle in text for needle in self.needles):
            return False
        return self.pattern is None or self.pattern.search(text) is not None


def log(*needles: str, pattern: str | None = None) -> OnLine:
    """A line of a rank's log. Needles are looked for first: choose some that only few lines hold."""
    return OnLine(needles, re.compile(pattern) if pattern else None)


def kernel(*needles: str, pattern: str | None = None) -> OnLine:
    """A line of a node's kernel log."""
    return OnLine(needles, re.compile(pattern) if pattern else None, of_kernel=True)


@dataclass(frozen=True, slots=True)
class Reported:
    """A part of sparkd finds this itself, where it happens; the rule says what it means."""

    id: str

    def __call__(self, evidence: Evidence) -> Iterator[Found]:
        told = [(verdict, verdict.node) for verdict in evidence.verdicts]
        told += [(verdict, look.node) for look in evidence.samples for verdict in look.sample.verdicts]
        for verdict, node in told:
            if verdict.id == self.id:
                yield Found(
                    verdict.evidence or verdict.title,
                    verdict.rank,
                    node,
                    title=verdict.title,
                    cause=verdict.cause,
                    remedy=verdict.remedy,
                    severity=verdict.severity,
                )


def reported(id_: str) -> Reported:
    return Reported(id_)

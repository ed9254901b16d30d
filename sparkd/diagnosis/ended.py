"""Processes that ended by a signal: as sparkd saw it, or as launchers write it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from sparkd.diagnosis.evidence import End, Evidence, Line
from sparkd.diagnosis.lines import ASKED_TO_END, is_of_a_user
from sparkd.diagnosis.rule import Found

NEEDLES: Final = (
    *("died unexpectedly", "exited with code", "exitcode  :"),
    *(" Killed  ", " Aborted ", " Segmentation fault ", " Terminated "),
)

_SHAPES: Final = (
    # vLLM's launcher of workers; `-9` is Python's way to say signal 9.
    re.compile(r"proc (?P<process>\S+) died unexpectedly \(exit code: (?P<code>-?\d+)\)"),
    # docker compose: 137 is the shell's way.
    re.compile(r"^(?P<process>[\w.-]+) exited with code (?P<code>\d+)$"),
    # torchrun's summary.
    re.compile(r"exitcode  : (?P<code>-\d+) \(pid: (?P<pid>\d+)\)"),
    # bash, of a job of its own.
    re.compile(r"line \d+: +(?P<pid>\d+) (?P<word>Killed|Aborted|Segmentation fault|Terminated)\b"),
)
_WORDS: Final = {"Killed": 9, "Aborted": 6, "Segmentation fault": 11, "Terminated": 15}
_SHELL: Final = 128
"""A shell and Docker add this to the number of the signal."""


def ends_of(evidence: Evidence) -> Iterator[End]:
    """Those that were seen, then those that are told of in lines."""
    yield from evidence.ends
    for line in evidence.lines:
        end = told_end(line)
        if end is not None and not is_of_a_user(line.text):
            yield end


def asked_to_end(evidence: Evidence) -> Iterator[Line]:
    """The lines in which a rank says that it was asked to end, and did. It kills its own processes then.

    Where something had ended before, on any rank, the question is no cause: whoever saw that asked. Logs
    alone say nothing of an order between them that their clocks do not tell: it may have been before then.
    """
    for line in evidence.lines:
        if ASKED_TO_END not in line.text or is_of_a_user(line.text):
            continue
        if evidence.logs_alone:
            if not any(may_precede(end, line) for end in ends_of(evidence)):
                yield line
            continue
        ended = any(end.rank == line.rank for end in evidence.ends)
        if ended and not any(_is_before(end, line) for end in ends_of(evidence)):
            yield line


class _Told(Protocol):
    """What a log tells of, where and when."""

    @property
    def rank(self) -> int | None: ...
    @property
    def node(self) -> str | None: ...
    @property
    def at(self) -> float | None: ...
    @property
    def error_s(self) -> float: ...


def may_precede(one: _Told, other: _Told) -> bool:
    """Of two things that logs tell of. In one log the order is certain, within a second too."""
    if one.at is None or other.at is None:
        return True
    if (one.rank, one.node) == (other.rank, other.node):
        return one.at < other.at
    return one.at - one.error_s <= other.at + other.error_s


def _is_before(end: End, line: Line) -> bool:
    """As far as both clocks tell."""
    if end.at is None or line.at is None:
        return False
    return end.at + end.error_s < line.at - line.error_s


def told_end(line: Line) -> End | None:
    """The end that a launcher tells of; None for any other line."""
    for shape in _SHAPES:
        match = shape.search(line.text)
        if match is None:
            continue
        told = match.groupdict()
        code = int(told.get("code") or _SHELL + _WORDS[told["word"]])
        signal = -code if code < 0 else code - _SHELL if code > _SHELL else None
        return End(
            told.get("process") or "a process",
            line.rank,
            line.node,
            int(told["pid"]) if told.get("pid") else None,
            code=None if signal else code,
            signal=signal,
            at=line.at,
            error_s=line.error_s,
        )
    return None


@dataclass(frozen=True, slots=True)
class EndedBy:
    """Ends by one of these signals."""

    signals: tuple[int, ...]
    needles: tuple[str, ...] = NEEDLES

    def __call__(self, evidence: Evidence) -> Iterator[Found]:
        return (found_end(end) for end in ends_of(evidence) if end.signal in self.signals)


def ended_by(*signals: int) -> EndedBy:
    return EndedBy(signals)


def found_end(end: End) -> Found:
    who = end.process if end.pid is None else f"{end.process} (pid {end.pid})"
    return Found(f"{who} was ended by signal {end.signal}", end.rank, end.node, end.at, end.error_s)

"""How collective probes look: while they run, and when they are over."""

import re
from collections.abc import Callable, Iterator
from typing import Final

from sparkd.cli.output import Paint, plain, size, table
from sparkd.errors import UsageError
from sparkd.records.collective import CollectiveTest

_SIZE: Final = re.compile(r"(\d+)\s*([KMG]?)(?:i?B)?", re.IGNORECASE)
_UNITS: Final = {"": 0, "K": 10, "M": 20, "G": 30}


def parse_size(text: str) -> int:
    """Bytes of `64M`, `16G`, `1048576`. Raises UsageError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--size: {text!r} is no size; it looks like 64M or 1G")
    return int(match[1]) << _UNITS[match[2].upper()]


class Progress:
    """A line for each change of each test."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._told: dict[tuple[str, ...], str] = {}
        self._over: list[CollectiveTest] = []

    @property
    def over(self) -> tuple[CollectiveTest, ...]:
        return tuple(self._over)

    def note(self, test: CollectiveTest) -> None:
        if test.over:
            self._over.append(test)
        text = _standing(test)
        if self._told.get(test.names) != text:
            self._told[test.names] = text
            self._say(f"{', '.join(test.names)}: {text}")


def _standing(test: CollectiveTest) -> str:
    if test.over:
        return test.reason
    if test.steps:
        return f"{size(test.steps[-1].bytes)} summed, waiting for {test.reason}"
    return f"waiting for {test.reason}"


def lines_of(test: CollectiveTest, paint: Paint = plain) -> list[str]:
    """One test that is over: what came of it, its ladder, and how far each rank came if it did not pass."""
    word = "passed" if test.passed else "failed"
    way = " over ".join(filter(None, (test.backend, test.transport or "")))
    head = f"{', '.join(test.names)}: {paint('ready' if test.passed else 'warn', word)}, {test.reason}"
    lines = [f"{head}{f' ({way})' if way else ''}, {test.took_s:.0f} s"]
    if test.steps:
        lines += table([("  SUM OF", "TAKES", "EACH WAY"), *_rungs(test)], plain)
        lines += list(_expected(test))
    if not test.passed:
        lines += table(
            [(f"  rank {one.rank}", one.node, one.stage, one.error or one.ended) for one in test.ranks]
        )
    return lines


def _rungs(test: CollectiveTest) -> Iterator[tuple[str, str, str]]:
    for step in test.steps:
        yield f"  {size(step.bytes)}", _time(step.seconds), f"{test.bus_mbit(step) / 1000:.3g} Gb/s"


def _expected(test: CollectiveTest) -> Iterator[str]:
    best = test.best_mbit
    if test.link_mbit is not None and best is not None:
        share = 100 * best / test.link_mbit
        yield f"  the links should carry {test.link_mbit / 1000:.3g} Gb/s each way: {share:.0f} % of that"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"

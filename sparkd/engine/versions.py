"""vLLM's versions, as far as ranges need them."""

import re
from dataclasses import dataclass
from typing import Final

_CLAUSE: Final = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)*)\s*")
_VERSION: Final = re.compile(r"(\d+(?:\.\d+)*)(.*)")


def release_of(version: str) -> tuple[tuple[int, ...], bool]:
    """Release numbers of a version, and whether it is a development or pre-release build of them.

    `0.32.0+cpu` is ((0, 32), False), `0.33.1rc1.dev20+gab12` is ((0, 33, 1), True). Raises ValueError.
    """
    match = _VERSION.match(version)
    if match is None:
        raise ValueError(f"not a version: {version!r}")
    rest = match[2].split("+", 1)[0]
    return _numbers(match[1]), bool(rest) and not rest.startswith(".post")


def _numbers(text: str) -> tuple[int, ...]:
    numbers = [int(part) for part in text.split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


Clause = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class VersionRange:
    """`>=0.24,<0.34`: every clause must hold. `>=0.24,<0.25 | >=0.33,<0.34`: all of one alternative.

    Trailing zeros do not matter.
    """

    alternatives: tuple[tuple[Clause, ...], ...]

    @classmethod
    def parse(cls, text: str) -> "VersionRange":
        """Raises ValueError with what is wrong."""
        return cls(tuple(_clauses(part) for part in text.split("|")))

    def contains(self, version: str) -> bool:
        """Whether the version's release lies in the range. Raises ValueError for what is no version."""
        return self._has(release_of(version)[0])

    def admits(self, release: str) -> bool:
        """Whether the range has the release `0.24` or one of its patches (they end far below 0.24.20)."""
        numbers = _numbers(release)
        major_minor = (*numbers, 0)[:2]
        return self._has(numbers) or any(self._has((*major_minor, patch)) for patch in range(1, 20))

    def _has(self, release: tuple[int, ...]) -> bool:
        return any(
            all(_holds(release, operator, bound) for operator, bound in clauses)
            for clauses in self.alternatives
        )


def _clauses(text: str) -> tuple[Clause, ...]:
    clauses = []
    for part in text.split(","):
        match = _CLAUSE.fullmatch(part)
        if match is None or len(match[2]) > 32:
            raise ValueError("write a range such as `>=0.24,<0.34`, alternatives with `|` between them")
        clauses.append((match[1], _numbers(match[2])))
    return tuple(clauses)


def _holds(release: tuple[int, ...], operator: str, bound: tuple[int, ...]) -> bool:
    return {
        ">=": release >= bound,
        "<=": release <= bound,
        "==": release == bound,
        "!=": release != bound,
        ">": release > bound,
        "<": release < bound,
    }[operator]

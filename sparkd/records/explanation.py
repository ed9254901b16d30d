"""Why something fell, for people and for `explain -o json` (design §11)."""

from dataclasses import dataclass

from sparkd.records.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Cause:
    """The one finding that explains the others. `id` is UNKNOWN where something fell and nothing says why."""

    id: str
    rank: int | None
    node: str | None
    evidence: str


@dataclass(frozen=True, slots=True)
class Secondary:
    """What followed from the cause: told once a place, with how often it was seen."""

    id: str
    rank: int | None
    node: str | None
    evidence: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Explanation:
    cause: Cause | None = None
    """None where nothing fell, as far as the evidence goes."""
    secondary: tuple[Secondary, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    """Of the cause first, then of those that came in the same moment, then what else is wrong."""
    lines: tuple[str, ...] = ()
    """The most telling lines, where the cause is not known."""
    not_known: tuple[str, ...] = ()
    prevents: tuple[str, ...] = ()
    """`KEY=VALUE` for `--set`."""

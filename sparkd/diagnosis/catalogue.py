"""All rules, found by listing their folders, and what they say of some evidence."""

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from types import ModuleType
from typing import Final

from sparkd.diagnosis import rules
from sparkd.diagnosis.evidence import End, Evidence
from sparkd.diagnosis.lines import is_harmless, read_line
from sparkd.diagnosis.rule import Found, Kind, Rule
from sparkd.records.verdict import Verdict

KINDS: Final[tuple[Kind, ...]] = ("end", "error", "exit", "collective")
"""What can be the cause of a fall, that which explains most first."""


@dataclass(frozen=True, slots=True)
class Area:
    """A folder of rules; `about` is what its package says of itself."""

    name: str
    about: str
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class Judged:
    """What a rule found at one place (a rank, else a node), first; and how often."""

    rule: Rule
    found: Found
    count: int = 1

    @property
    def verdict(self) -> Verdict:
        return self.rule.verdict(self.found)


@cache
def areas() -> tuple[Area, ...]:
    """By name, and so are the rules in each."""
    return tuple(_area(module) for module in _modules(rules))


@cache
def catalogue() -> Mapping[str, Rule]:
    """By id."""
    return {rule.id: rule for area in areas() for rule in area.rules}


def judge(evidence: Evidence, among: Iterable[Rule] | None = None) -> tuple[Judged, ...]:
    """What the rules find, each once a place, in the order of the rules; all rules if `among` is None.

    Of lines that are logged while all is well only states are read. A rule with a fault finds nothing, and
    RULE_FAULT tells of it: what was asked for is acted upon all the same.
    """
    grave = replace(evidence, lines=tuple(line for line in evidence.lines if not is_harmless(line)))
    judged: list[Judged] = []
    for rule in catalogue().values() if among is None else among:
        places: dict[tuple[int | None, str | None], list[Found]] = {}
        try:
            for found in rule.match(evidence if rule.kind == "state" else grave):
                places.setdefault((found.rank, found.node), []).append(found)
        except Exception as error:  # noqa: BLE001 - whoever added it did not think of this input
            fault = Found(f"{rule.id}: {type(error).__name__}: {error}")
            judged.append(Judged(catalogue()["RULE_FAULT"], fault, 1))
            continue
        judged += [Judged(rule, _first(founds), len(founds)) for founds in places.values()]
    return tuple(judged)


@lru_cache(maxsize=256)
def cause_of_rank(
    lines: tuple[str, ...],
    end: End | None = None,
    *,
    refused: bool = True,
    verdicts: tuple[Verdict, ...] = (),
) -> Rule | None:
    """What the last lines of one rank, oldest first, and the end of its process say of why it fell.

    None if that is nothing known. A bare signal explains less than an exception, and a collective that failed
    is told only where nothing else is; a state is never a cause. Unless it `refused` to go on by itself, what
    no retry can cure was no reason to end, whatever was logged. `verdicts` are those of its node that are
    known to be about it.
    """
    read = tuple(read_line(raw, at=float(place)) for place, raw in enumerate(lines))
    rules = [rule for rule in _of_falls() if refused or rule.retry != "never"]
    told = judge(Evidence(read, ends=() if end is None else (end,), verdicts=verdicts), rules)
    causes = [one for one in told if one.rule.kind in KINDS]
    best = min(causes, key=lambda one: (KINDS.index(one.rule.kind), one.found.at or 0.0), default=None)
    return best.rule if best else None


@cache
def _of_falls() -> tuple[Rule, ...]:
    return tuple(rule for rule in catalogue().values() if rule.line_needles and rule.kind in KINDS)


def _first(founds: list[Found]) -> Found:
    return min(founds, key=lambda found: float("inf") if found.at is None else found.at)


def _area(package: ModuleType) -> Area:
    name = package.__name__.rpartition(".")[2]
    found = tuple(module.RULE for module in _modules(package))
    return Area(name, (package.__doc__ or "").strip(), found)


def _modules(package: ModuleType) -> list[ModuleType]:
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    return [importlib.import_module(f"{package.__name__}.{name}") for name in names]

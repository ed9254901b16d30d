"""A verdict: one finding of the diagnosis, preflight or watch."""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    BLOCK = "block"
    WARN = "warn"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`id` is stable and upper case (`PORT_IN_USE`); `remedy` says what a person does now."""

    id: str
    severity: Severity
    title: str
    evidence: str = ""
    cause: str = ""
    remedy: str = ""
    node: str | None = None
    rank: int | None = None
    waived: bool = False

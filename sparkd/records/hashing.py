"""What is told while all bytes of a model are read on its nodes: `POST /v1/preflight/hash`, a line each."""

from dataclasses import dataclass

from sparkd.records.verdict import Verdict


@dataclass(frozen=True, slots=True)
class HashStep:
    """How far one node is. Bytes."""

    node: str
    done: int
    total: int
    file: str = ""
    error: str = ""
    """Why it does not go on."""


@dataclass(frozen=True, slots=True)
class HashEnd:
    """All that could be read was compared."""

    verdicts: tuple[Verdict, ...]
    bytes: int
    """Read on each node, at most."""
    took_s: float


@dataclass(frozen=True, slots=True)
class HashLine:
    """One of both."""

    step: HashStep | None = None
    end: HashEnd | None = None

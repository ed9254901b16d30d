"""Why a gang fell, as it is told to people."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fall:
    """The fall that is told to people: the first failing rank and why it counts as fallen."""

    generation: int
    rank: int
    node: str
    reason: str
    wall: float
    code: int | None = None
    signal: int | None = None
    how: str = "unknown"
    lines: tuple[str, ...] = ()
    cause: str | None = None
    remedy: str = ""

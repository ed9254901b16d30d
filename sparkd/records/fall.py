"""Why a gang fell, as it is told to people."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Beside:
    """Another rank that fell in the same moment, as far as the clocks tell."""

    rank: int
    node: str
    reason: str


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
    wall_error_s: float = 0.0
    """`wall` is right within so many seconds."""
    beside: tuple[Beside, ...] = ()
    judged: bool = False
    """By the gang or an agent's watch, not read from a process's end: no later exit explains it."""

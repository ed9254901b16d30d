"""One line of history: every transition is an event with a reason."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """`id` is `term-seq`, so that it grows over the lives of a coordinator."""

    id: str
    at: float
    kind: str
    reason: str
    deployment: str | None = None
    generation: int | None = None
    node: str | None = None
    rank: int | None = None
    from_: str | None = None
    to: str | None = None

"""One line of history: every transition is an event with a reason."""

from dataclasses import dataclass, fields
from typing import Any, Self

import msgspec


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

    def wire(self) -> dict[str, Any]:
        """As it stands in JSON, where `from_` is called `from`; ready for any encoder."""
        return {field.name.rstrip("_"): getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_wire(cls, body: dict[str, Any]) -> Self:
        """Read what `wire` gave; msgspec.ValidationError names the key that is wrong."""
        own = {("from_" if key == "from" else key): value for key, value in body.items()}
        return msgspec.convert(own, cls)

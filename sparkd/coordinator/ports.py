"""Which ports of a node are free, as its agent answers."""

import msgspec

from sparkd.records.report import TaskResult


class Port(msgspec.Struct):
    port: int
    free: bool = False
    owner: str | None = None
    """Who holds it, if the node knows."""


class _Answer(msgspec.Struct):
    ports: list[Port]


def ports_of(result: TaskResult) -> list[Port]:
    """Of the answer to a `port` task. Raises msgspec.ValidationError for one that is not understood."""
    return msgspec.convert(result.result, _Answer).ports

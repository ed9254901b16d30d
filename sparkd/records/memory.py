"""A node's memory. A file of its own, so that the status document, which the command line reads on every
call, does not load the records of the agent protocol (35 ms of dataclasses).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Memory:
    total: int
    available: int
    free: int


@dataclass(frozen=True, slots=True)
class Pressure:
    some10: float | None = None
    full10: float | None = None

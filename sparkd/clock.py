"""Time as an argument: nothing that decides reads a clock of its own."""

import time
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, order=True)
class Instant:
    """One moment on both clocks of one machine.

    `mono` (seconds, arbitrary origin) is what every decision uses; `wall` (seconds since 1970) is only
    shown to people and written to records, because it jumps.
    """

    mono: float
    wall: float


class Clock(Protocol):
    def now(self) -> Instant: ...


class SystemClock:
    def now(self) -> Instant:
        return Instant(mono=time.monotonic(), wall=time.time())

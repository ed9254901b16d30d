"""One look at a node, as the watch takes it, and what two looks say together. What is not known is None."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sparkd.records.memory import Memory

Field = Literal[
    "some_us",
    "full_us",
    "stalls",
    "direct_scanned",
    "direct_freed",
    "refaults",
    "swapped",
    "oom_kills",
    "compactions",
]


@dataclass(frozen=True, slots=True)
class Counters:
    """Since boot, as the kernel counts; pages unless the name says otherwise. None: unknown."""

    some_us: int | None = None
    """Microseconds in which some task waited for memory (PSI `total`)."""
    full_us: int | None = None
    stalls: int | None = None
    """Allocations that had to reclaim for themselves, over all zones."""
    direct_scanned: int | None = None
    direct_freed: int | None = None
    refaults: int | None = None
    """Of files: read again after having been thrown away."""
    swapped: int | None = None
    """In and out together."""
    oom_kills: int | None = None
    compactions: int | None = None
    """Allocations of several pages in a row that had to wait for memory to be compacted."""


@dataclass(frozen=True, slots=True)
class BusyThread:
    """A kernel thread and how much of one core it used since the look before."""

    name: str
    share: float

    def __str__(self) -> str:
        return f"{self.name} at {100 * self.share:.0f} % of a core"


@dataclass(frozen=True, slots=True)
class Look:
    at: float
    """Monotonic seconds."""
    memory: Memory | None = None
    counters: Counters = Counters()
    threads: tuple[BusyThread, ...] | None = None
    """Those of the GPU's driver and of reclaim; None where kernel threads are hidden."""
    no_memory_lines: int = 0
    """NV_ERR_NO_MEMORY lines of the kernel's log since the look before."""


PAGE_BYTES: Final = 4096
"""What vmstat counts in on x86-64 and on a DGX Spark's arm64 kernel alike."""


def within(looks: Sequence[Look], span_s: float) -> tuple[Look, ...]:
    """The newest looks, as far back as the span reaches, and the one before: rates begin there."""
    if not looks:
        return ()
    begin = looks[-1].at - span_s
    first = len(looks) - 1
    while first > 0 and looks[first].at > begin:
        first -= 1
    return tuple(looks[first:])


def rate(looks: Sequence[Look], field: Field) -> float | None:
    """Growth per second over these looks; None unless both ends say."""
    if len(looks) < 2:
        return None
    first: int | None = getattr(looks[0].counters, field)
    last: int | None = getattr(looks[-1].counters, field)
    span = looks[-1].at - looks[0].at
    if first is None or last is None or span <= 0:
        return None
    return max(0, last - first) / span

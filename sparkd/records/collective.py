"""The collective probe: ranks of kind `probe` that sum up where those of a gang would. Seconds and bytes."""

from dataclasses import dataclass, field
from typing import Final, Literal

from sparkd.records.verdict import Verdict

Stage = Literal["started", "imported", "met", "joined", "summed", "done"]
"""`imported`: torch is loaded and its device answers; `met`: it reached the rendezvous; `joined`: all are one
group; `summed`: the first all-reduce gave the right sum; `done`: the whole ladder did.
"""

STAGES: Final[tuple[Stage, ...]] = ("started", "imported", "met", "joined", "summed", "done")

Transport = Literal["rdma", "sockets"]


@dataclass(frozen=True, slots=True)
class Step:
    """One rung of the ladder, as slow as its slowest rank."""

    bytes: int
    seconds: float
    """Of one all-reduce."""


@dataclass(frozen=True, slots=True)
class CollectiveReport:
    """What one rank of a probe has said so far."""

    stage: Stage = "started"
    backend: str = ""
    """`nccl` or `gloo`; empty until it is known."""
    versions: dict[str, str] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    error: str = ""
    """What failed between the ranks, in the words of torch or NCCL."""
    unable: str = ""
    """Why it could not be tried at all: it says nothing of the fabric."""


@dataclass(frozen=True, slots=True)
class CollectiveRank:
    """One rank of a probe as the coordinator sees it."""

    rank: int
    node: str
    """Its name."""
    stage: Stage = "started"
    alive: bool = True
    """Its process has not ended, as far as its node has said."""
    ended: str = ""
    """How its process ended, unless it ended well."""
    error: str = ""
    unable: str = ""
    transport: Transport | None = None
    rdma: bool = False
    """It was given RDMA ports."""


@dataclass(frozen=True, slots=True)
class CollectiveTest:
    """One collective probe, running or over."""

    ranks: tuple[CollectiveRank, ...]
    over: bool = False
    backend: str = ""
    transport: Transport | None = None
    """The slowest way that any rank took; None where NCCL did not say, as with gloo."""
    steps: tuple[Step, ...] = ()
    link_mbit: float | None = None
    """What the links that it was given should carry, each way; None: not known."""
    took_s: float = 0.0
    reason: str = ""
    """What it waits for, or how it ended."""
    verdicts: tuple[Verdict, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(rank.node for rank in self.ranks)

    @property
    def passed(self) -> bool:
        return bool(self.ranks) and all(rank.stage == "done" for rank in self.ranks)

    def bus_mbit(self, step: Step) -> float:
        """What each link carried each way: an all-reduce moves 2 (n - 1) / n of its bytes over it."""
        count = len(self.ranks)
        return step.bytes * 8 * 2 * (count - 1) / count / step.seconds / 1e6 if step.seconds > 0 else 0.0

    @property
    def latency_s(self) -> float | None:
        """Of the smallest sum."""
        return self.steps[0].seconds if self.steps else None

    @property
    def best_mbit(self) -> float | None:
        """The best of the rungs that are large enough to fill a link."""
        return max((self.bus_mbit(step) for step in self.steps if step.bytes >= FILLING_BYTES), default=None)


FILLING_BYTES: Final = 16 << 20
"""A smaller sum is over before a link of 200 Gb/s is full."""

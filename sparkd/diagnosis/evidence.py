"""What rules look at. Everything has a default: evidence is what is left, and usually not much is."""

from dataclasses import dataclass

from sparkd.records.collective import CollectiveTest
from sparkd.records.preflight import Asked, Member
from sparkd.records.report import Sample
from sparkd.records.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a rank's log, or of a node's kernel log."""

    text: str
    """Without what loggers and launchers put before it."""
    rank: int | None = None
    node: str | None = None
    at: float | None = None
    """Wall clock of the coordinator, in seconds; None where the log has no times."""
    error_s: float = 0.0
    """`at` is right within so many seconds."""
    process: str = ""
    """As its logger names it: `Worker_TP1`, `EngineCore`, `APIServer`."""
    level: str = ""
    """`INFO`, `WARNING`, `ERROR`; empty for what was not written by a logger."""


@dataclass(frozen=True, slots=True)
class End:
    """A process of a rank that ended unasked. Code and signal are None where nobody knows."""

    process: str
    rank: int | None = None
    node: str | None = None
    pid: int | None = None
    code: int | None = None
    signal: int | None = None
    at: float | None = None
    error_s: float = 0.0
    was_ready: bool = False
    """Its gang had been ready before: it has served."""


@dataclass(frozen=True, slots=True)
class NodeSample:
    """One look of a node's watch."""

    node: str
    at: float
    sample: Sample


@dataclass(frozen=True, slots=True)
class Evidence:
    lines: tuple[Line, ...] = ()
    """Of ranks' logs, in the order of each log."""
    kernel: tuple[Line, ...] = ()
    ends: tuple[End, ...] = ()
    samples: tuple[NodeSample, ...] = ()
    """Oldest first."""
    members: tuple[Member, ...] = ()
    """The nodes of a launch in rank order, as they answered to its preflight."""
    asked: Asked | None = None
    """What the launch wants of them; None: they are looked at by themselves."""
    verdicts: tuple[Verdict, ...] = ()
    """What a part of sparkd has found by itself: a detector of the watch, the gang, the planner."""
    collective: CollectiveTest | None = None
    """A collective probe of these nodes."""
    sum_bytes: int = 0
    """The largest sum that a person asked for of these nodes; 0: nobody did."""
    logs_alone: bool = False
    """Logs of a foreign launcher: nobody has seen what ended, each log tells of one rank in its order."""

"""Whether a rank gets anywhere on its way up (design §3.4).

Progress is: a log line whose text without numbers was not seen in this phase, a bar that shows more than it
ever did, bytes read, growth of the rank's memory, CPU time of compiler children, and the rank's own CPU time
only while something compiles during warming. Heartbeat lines, throughput lines, TCPStore retries and
spinning workers are not: a rank can print and burn for ever without getting anywhere.
"""

import re
from dataclasses import dataclass, field, replace
from typing import Final

from sparkd.engine.phrases import Sighting, later, read_line
from sparkd.records.report import RankPhase

# What is less than this is noise of an idle process, not progress. Growth below a step is not lost: it adds
# up, because it is measured from the last mark. A real rank that waits at the rendezvous read 5 bytes a
# second, pipes included (vLLM 0.32, watched for 40 s).
READ_STEP_BYTES: Final = 256 << 10
RSS_STEP_BYTES: Final = 8 << 20
CPU_STEP_S: Final = 0.5

SEEN_LIMIT: Final = 4096
"""Texts remembered in one phase. vLLM prints a few hundred; after so many, lines no longer count."""

_CHANGING: Final = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{8,}\b|\d+")


@dataclass(frozen=True, slots=True)
class ProgressSample:
    """One look at one rank. Bytes and CPU seconds are sums over its processes since their start."""

    lines: tuple[str, ...] = ()
    """Log lines since the last look."""
    read_bytes: int = 0
    rss_bytes: int = 0
    cpu_s: float = 0.0
    compiler_cpu_s: float = 0.0
    """Of compiler children (nvcc, ptxas, cc1plus, …) alone."""
    compiling: bool = False
    """A compiler child lives."""
    phase: RankPhase | None = None
    """A phase known from elsewhere: the API answers, so rank 0 serves."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What is known of one rank's way up. Times are monotonic seconds.

    `percent` is of the current phase, below 100 until that phase has passed; None when nobody can say.
    """

    phase: RankPhase
    phase_since: float
    progressed_at: float
    what: str
    """What the last progress was, in plain words."""
    detail: str = ""
    percent: float | None = None
    facts: dict[str, str] = field(default_factory=dict)
    """What the log told (`mq_connect_ip`, `kv_tokens`, …)."""
    weights_bytes: int = 0
    read_bytes: int = 0
    """Of the last look."""

    # Marks that `observe` measures from.
    seen: frozenset[int] = frozenset()
    bar: float = -1.0
    read_mark: int = 0
    read_at_phase: int = 0
    rss_mark: int = 0
    cpu_mark: float = 0.0
    compiler_mark: float = 0.0

    def age(self, now: float) -> float:
        """Seconds since the last progress."""
        return max(0.0, now - self.progressed_at)


def begin(now: float, weights_bytes: int = 0) -> Progress:
    """A rank that was started just now. `weights_bytes`: what it will read while loading, 0 when unknown."""
    return Progress("launching", now, now, "started", weights_bytes=weights_bytes)


def observe(progress: Progress, sample: ProgressSample, now: float) -> Progress:
    """Take one look into account."""
    for line in sample.lines:
        progress = _read(progress, line, now)
    if sample.phase is not None:
        progress = _enter(progress, sample.phase, now)
    progress = _measure(progress, sample, now)
    return replace(progress, percent=_percent(progress))


def _read(progress: Progress, line: str, now: float) -> Progress:
    sighting = read_line(line)
    if sighting is not None and sighting.heartbeat:
        return progress
    if sighting is not None:
        progress = _sight(progress, sighting, now)
    text = _CHANGING.sub("#", line).strip()
    key = hash(text)
    if not text or key in progress.seen or len(progress.seen) >= SEEN_LIMIT:
        return progress
    return replace(progress, seen=progress.seen | {key}, progressed_at=now, what="a new log line")


def _sight(progress: Progress, sighting: Sighting, now: float) -> Progress:
    if sighting.phase is not None:
        progress = _enter(progress, sighting.phase, now)
    if sighting.phase == progress.phase:
        progress = replace(progress, detail=sighting.detail)
        if sighting.percent is not None and sighting.percent > progress.bar:
            progress = replace(progress, bar=sighting.percent, progressed_at=now, what=sighting.detail)
    return replace(progress, facts=progress.facts | sighting.facts) if sighting.facts else progress


def _enter(progress: Progress, phase: RankPhase, now: float) -> Progress:
    """Phases only go forward: a draft model loads after the main one, while the rank counts as warming."""
    if later(phase, progress.phase) == progress.phase:
        return progress
    return replace(
        progress,
        phase=phase,
        phase_since=now,
        progressed_at=now,
        what=f"{phase} began",
        detail="",
        seen=frozenset(),
        bar=-1.0,
        read_at_phase=progress.read_bytes,
    )


def _measure(progress: Progress, sample: ProgressSample, now: float) -> Progress:
    # A sum falls when a process ends; the mark falls with it for what cannot be feigned (bytes read, compiler
    # time) and stays for memory, where growing and shrinking in turn would look like growth.
    read_mark = min(progress.read_mark, sample.read_bytes)
    compiler_mark = min(progress.compiler_mark, sample.compiler_cpu_s)
    cpu_mark = min(progress.cpu_mark, sample.cpu_s)
    rss_mark = progress.rss_mark
    what: str | None = None
    if sample.read_bytes - read_mark >= READ_STEP_BYTES:
        read_mark, what = sample.read_bytes, "bytes read"
    if sample.rss_bytes - rss_mark >= RSS_STEP_BYTES:
        rss_mark, what = sample.rss_bytes, "memory growing"
    if sample.compiler_cpu_s - compiler_mark >= CPU_STEP_S:
        compiler_mark, what = sample.compiler_cpu_s, "compiling"
    if sample.compiling and progress.phase == "warming":
        if sample.cpu_s - cpu_mark >= CPU_STEP_S:
            cpu_mark, what = sample.cpu_s, "compiling"
    else:
        cpu_mark = sample.cpu_s
    return replace(
        progress,
        read_bytes=sample.read_bytes,
        progressed_at=now if what else progress.progressed_at,
        what=what or progress.what,
        read_mark=read_mark,
        rss_mark=rss_mark,
        cpu_mark=cpu_mark,
        compiler_mark=compiler_mark,
    )


def _percent(progress: Progress) -> float | None:
    """From the log's bar, else from the bytes read since loading began; only a passed phase is complete."""
    if progress.phase == "serving":
        return 100.0
    if progress.bar >= 0:
        return min(99.0, progress.bar)
    if progress.phase == "loading" and progress.weights_bytes > 0:
        read = max(0, progress.read_bytes - progress.read_at_phase)
        return min(99.0, 100.0 * read / progress.weights_bytes)
    return None

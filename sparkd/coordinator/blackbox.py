"""The last minutes of every node, kept here: a frozen node is explained without asking it."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sparkd.clock import Instant
from sparkd.diagnosis.evidence import End, Evidence, Line, NodeSample
from sparkd.diagnosis.lines import read_line, stamped_lines
from sparkd.fleet.nodes import Node
from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd.records.incident import Entry
from sparkd.records.names import parse_rank_name
from sparkd.records.report import Exit, LogChunk, Report


@dataclass(slots=True)
class _Tail:
    """Of one rank's log: whole lines as its shim stamped them."""

    chunks: deque[str] = field(default_factory=deque)
    bytes: int = 0
    at: float = 0.0


@dataclass(slots=True)
class _Kept:
    samples: deque[NodeSample] = field(default_factory=deque)
    entries: deque[Entry] = field(default_factory=deque)
    kernel: deque[Line] = field(default_factory=deque)
    tails: dict[str, _Tail] = field(default_factory=dict)
    exits: dict[tuple[str, int], Exit] = field(default_factory=dict)


class BlackBox:
    """Bounded by time (`blackbox_s`), by lines, and by bytes of log a rank. Nothing here decides."""

    def __init__(self, limits: Defaults = DEFAULTS) -> None:
        self._limits = limits
        self._nodes: dict[str, _Kept] = {}

    def take(self, node: Node, report: Report, now: Instant) -> None:
        kept = self._nodes.setdefault(node.id, _Kept())
        if report.sample is not None:
            kept.samples.append(NodeSample(node.name, now.wall, report.sample))
        kept.entries += [
            Entry(
                one.at + node.clock_offset_s, "act", f"{one.kind}: {one.reason}", node.name, _rank(one.rank)
            )
            for one in report.events
        ]
        # A line has no time of its own: it was written since the look before this one.
        look_s = self._limits.watch_s
        kept.kernel += [
            read_line(text, node=node.name, at=now.wall - look_s / 2, error_s=look_s)
            for text in report.kernel
        ]
        for exit_ in report.exits:
            kept.exits[exit_.rank, exit_.pid] = exit_
        for chunk in report.tails:
            self._add(kept, chunk, now.wall)
        # A node without a rank has nothing to explain: of it the last minute is enough.
        self._forget(
            kept, now.wall, self._limits.blackbox_s if report.ranks else self._limits.blackbox_idle_s
        )

    def _add(self, kept: _Kept, chunk: LogChunk, at: float) -> None:
        tail = kept.tails.setdefault(chunk.rank, _Tail())
        tail.chunks.append(chunk.text)
        tail.bytes += len(chunk.text)
        tail.at = at
        while tail.bytes > self._limits.blackbox_log_bytes and len(tail.chunks) > 1:
            tail.bytes -= len(tail.chunks.popleft())

    def _forget(self, kept: _Kept, now: float, keep_s: float) -> None:
        while kept.samples and kept.samples[0].at < now - keep_s:
            kept.samples.popleft()
        for lines in (kept.entries, kept.kernel):
            while len(lines) > self._limits.blackbox_lines:
                lines.popleft()
        old = now - self._limits.blackbox_s
        for name in [name for name, tail in kept.tails.items() if tail.at < old]:
            del kept.tails[name]
        while len(kept.exits) > self._limits.exits_remembered:
            del kept.exits[next(iter(kept.exits))]

    def evidence(self, nodes: Iterable[Node], ranks: Mapping[str, int], since: float) -> Evidence:
        """What is kept of these nodes and of the ranks of these names, from a wall clock of ours on."""
        lines: list[Line] = []
        kernel: list[Line] = []
        ends: list[End] = []
        samples: list[NodeSample] = []
        for node in nodes:
            kept = self._nodes.get(node.id)
            if kept is None:
                continue
            kernel += [line for line in kept.kernel if line.at is not None and line.at >= since]
            samples += [one for one in kept.samples if one.at >= since]
            for name, tail in kept.tails.items():
                if name in ranks:
                    lines += _lines(tail, node, ranks[name], since)
            ends += [_end(one, node, ranks[one.rank]) for one in kept.exits.values() if one.rank in ranks]
        return Evidence(tuple(lines), tuple(kernel), tuple(ends), tuple(samples))

    def acts(self, nodes: Iterable[Node], since: float) -> tuple[Entry, ...]:
        """What agents did of their own accord."""
        kept = [self._nodes[node.id] for node in nodes if node.id in self._nodes]
        return tuple(entry for one in kept for entry in one.entries if entry.at >= since)


def _rank(name: str | None) -> int | None:
    parsed = parse_rank_name(name) if name else None
    return parsed.rank if parsed else None


def _lines(tail: _Tail, node: Node, rank: int, since: float) -> list[Line]:
    """Stamps are of the node's clock."""
    found = []
    for wall, _, text in stamped_lines("".join(tail.chunks)):
        at = wall + node.clock_offset_s
        if at >= since:
            found.append(read_line(text, rank=rank, node=node.name, at=at, error_s=_error_s(node)))
    return found


def _end(exit_: Exit, node: Node, rank: int) -> End:
    return End(
        exit_.process,
        rank,
        node.name,
        exit_.pid,
        exit_.code,
        exit_.signal,
        exit_.at + node.clock_offset_s,
        _error_s(node),
    )


def _error_s(node: Node) -> float:
    """Infinite until the clocks were compared; more than the window of a cause makes no difference."""
    return min(node.clock_error_s, DEFAULTS.cause_window_s)

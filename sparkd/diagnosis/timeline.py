"""The last minutes before a fall, across nodes, in lines for people. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sparkd.diagnosis.evidence import End, Evidence, Line, NodeSample
from sparkd.engine.phrases import telling_lines
from sparkd.records.defaults import DEFAULTS, GIB, Defaults
from sparkd.records.incident import Entry


def timeline(
    evidence: Evidence, also: Iterable[Entry], until: float, limits: Defaults = DEFAULTS
) -> tuple[Entry, ...]:
    """Oldest first, at most `timeline_entries`, the newest ones; `until` is a wall clock."""
    since = until - limits.timeline_s
    entries = [
        *also,
        *_samples(evidence.samples, limits),
        *_kernel(evidence.kernel),
        *(_exit(end) for end in evidence.ends),
        *_lines(evidence.lines),
    ]
    chosen = sorted((one for one in entries if since <= one.at <= until), key=lambda one: one.at)
    return tuple(chosen[-limits.timeline_entries :])


def _samples(samples: Iterable[NodeSample], limits: Defaults) -> list[Entry]:
    """One in `timeline_sample_s` of each node, and each that brought another verdict."""
    found = []
    last: dict[str, tuple[float, frozenset[str]]] = {}
    for one in samples:
        ids = frozenset(verdict.id for verdict in one.sample.verdicts)
        at, before = last.get(one.node, (float("-inf"), frozenset()))
        if one.at - at >= limits.timeline_sample_s or not ids <= before:
            last[one.node] = (one.at, ids)
            found.append(Entry(one.at, "sample", sample_text(one), one.node))
    return found


def sample_text(one: NodeSample) -> str:
    """`MemAvailable 3.1 GiB, PSI full 12 %, GPU 96 %, 22 W, MEMORY_LOW`, as far as known."""
    sample = one.sample
    parts = []
    if sample.memory is not None:
        parts.append(f"MemAvailable {sample.memory.available / GIB:.1f} GiB")
    if sample.pressure.full10:
        parts.append(f"PSI full {sample.pressure.full10:.0f} %")
    gpu = sample.gpu
    parts += [f"GPU {gpu['utilization']:.0f} %"] if "utilization" in gpu else []
    parts += [f"{gpu['watts']:.0f} W"] if "watts" in gpu else []
    return ", ".join([*parts, *(verdict.id for verdict in sample.verdicts)]) or "nothing is known"


def _kernel(lines: Iterable[Line]) -> list[Entry]:
    """Each kind of line once, with how often it came."""
    kinds: dict[tuple[str | None, str], list[Line]] = {}
    for line in lines:
        kinds.setdefault((line.node, re.sub(r"\d+", "#", line.text)), []).append(line)
    return [
        Entry(same[0].at or 0.0, "kernel", same[0].text + _times(len(same)), node, error_s=same[0].error_s)
        for (node, _), same in kinds.items()
    ]


def _times(count: int) -> str:
    return f" ({count} times)" if count > 1 else ""


def _exit(end: End) -> Entry:
    if end.signal is not None:
        how = f"was ended by signal {end.signal}"
    else:
        how = "ended, nobody knows how" if end.code is None else f"exited with {end.code}"
    pid = f" (pid {end.pid})" if end.pid is not None else ""
    return Entry(end.at or 0.0, "exit", f"{end.process}{pid} {how}", end.node, end.rank, end.error_s)


def _lines(lines: Iterable[Line]) -> list[Entry]:
    """The most telling ones of each rank."""
    ranks: dict[int | None, list[Line]] = {}
    for line in lines:
        ranks.setdefault(line.rank, []).append(line)
    found = []
    for rank, said in ranks.items():
        told = set(telling_lines([line.text for line in said], limit=6))
        for line in said:
            if line.text.strip() in told and line.at is not None:
                told.discard(line.text.strip())
                found.append(Entry(line.at, "line", line.text.strip(), line.node, rank, line.error_s))
    return found


def completed(
    known: tuple[Entry, ...], node: str, records: Sequence[Mapping[str, Any]], offset_s: float
) -> tuple[Entry, ...]:
    """With what the node's own black box saw after the last that it could tell before it went.

    `records`, at least one, are those of `sparkd_agent.ring`, by the node's clock; `offset_s` moves them to
    ours.
    """
    ended = float(records[-1]["at"]) + offset_s
    own = [entry.at for entry in known if entry.node == node and entry.kind == "sample"]
    last = max((at for at in own if at <= ended), default=0.0)  # later ones are of its next life
    found = []
    for record in records:
        at = float(record["at"]) + offset_s
        if at <= last:
            continue
        available = record.get("available")
        parts = [f"MemAvailable {available / GIB:.1f} GiB"] if available is not None else []
        text = ", ".join([*parts, *record.get("verdicts", ())]) or "nothing is known"
        found.append(Entry(at, "sample", f"{text} (told by the node after its return)", node))
        found += [Entry(at, "kernel", str(line), node) for line in record.get("kernel", ())]
    return tuple(sorted((*known, *found), key=lambda entry: entry.at))

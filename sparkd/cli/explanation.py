"""How explanations and incidents look: pure functions from records to lines."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from sparkd.cli.output import Paint, ago, clock_text, duration, exit_text, verdict_lines
from sparkd.cli.stacks import stack_lines
from sparkd.records.answer import RankStacks
from sparkd.records.event import Event
from sparkd.records.explanation import Explanation
from sparkd.records.incident import Entry, Incident
from sparkd.records.status import DeploymentStatus, ExitStatus

_STACK_LINES: Final = 12
"""Of one process; the innermost calls come first."""


def explanation_lines(told: Explanation, paint: Paint, indent: str = "") -> list[str]:
    """One sentence, then what supports it, what followed, what is not known, and what prevents it."""
    if told.cause is None:
        lines = ["nothing here tells of a fall"]
    else:
        title = told.verdicts[0].title if told.verdicts else told.cause.evidence
        lines = [f"{_at(told.cause.rank, told.cause.node)}{title} ({told.cause.id})"]
    lines += verdict_lines(told.verdicts, paint, "  ")
    lines += [f"    | {line}" for line in told.lines]
    for one in told.secondary:
        times = f", {one.count} times" if one.count > 1 else ""
        lines.append(f"  and {_at(one.rank, one.node)}{one.id}{times}: a consequence")
    lines += [f"  not known: {gap}" for gap in told.not_known]
    lines += [f"  prevents it: --set {one}" for one in told.prevents]
    return [indent + line for line in lines]


def waiting_lines(status: DeploymentStatus, now: float) -> list[str]:
    """Of something that is not ready yet: when it last moved, when it will be ended, and where to look."""
    waiting = status.waiting_for
    if waiting is None:
        return []
    lines = [f"  last progress {ago(waiting.last_progress, now)} ago"] if waiting.last_progress else []
    if waiting.deadline:
        left = datetime.fromisoformat(waiting.deadline).timestamp() - now
        lines.append(f"  in {duration(left)}: {waiting.then}")
    running = {rank.rank for rank in status.ranks if rank.pid is not None}
    if waiting.rank in running:
        lines.append(f"  where its threads are: sparkd stacks {status.name} --rank {waiting.rank}")
    elif running:
        lines.append(f"  where threads are: sparkd stacks {status.name}")
    return lines


def known_lines(name: str, tried: Sequence[Event], stacks: Sequence[RankStacks], now: float) -> list[str]:
    """Of something that is not ready yet: what was done so far, and where the silent rank's threads are."""
    lines = ["  so far:"] if tried else []
    for one in tried:
        step = f"{one.kind} {one.to}" if one.to else one.kind
        lines.append(f"    {duration(max(0.0, now - one.at))} ago  {step}: {one.reason}")
    for rank in stacks:
        for process in rank.processes:
            left = len(process.lines) - _STACK_LINES
            shown = replace(process, lines=process.lines[:_STACK_LINES])
            lines += [f"  {line}" for line in stack_lines(replace(rank, processes=(shown,)))]
            if left > 0:
                lines.append(f"      … {left} lines more: sparkd stacks {name} --rank {rank.rank}")
    return lines


def incident_lines(name: str, one: Incident, paint: Paint, *, with_timeline: bool) -> list[str]:
    fall = one.fall
    ended = exit_text(ExitStatus(fall.code, fall.signal, fall.how))
    lines = [
        f"{name}/{fall.generation}  {clock_text(fall.wall)}",
        f"  rank {fall.rank} on {fall.node}, {ended}: {fall.reason}",
    ]
    lines += [f"    | {line}" for line in fall.lines]
    told = one.explanation
    if told is None:  # written by an older coordinator
        return lines + verdict_lines(one.verdicts, paint, "  ")
    lines += explanation_lines(told, paint, "  ")
    if with_timeline:
        lines += _stack_lines(name, one)
        lines += ["  the last minutes:", *timeline_lines(one.timeline, fall.wall)]
    elif one.timeline:
        lines.append(f"  the last minutes: sparkd explain {name}/{fall.generation}")
    return lines


def _stack_lines(name: str, one: Incident) -> list[str]:
    """Whole of the rank that is blamed; of the others that they are known."""
    lines = [f"    {line}" for told in one.stacks if told.rank == one.fall.rank for line in stack_lines(told)]
    if not one.stacks:
        return []
    others = [str(told.rank) for told in one.stacks if told.rank != one.fall.rank and told.processes]
    if others:
        asked = f"sparkd explain {name}/{one.generation} -o json"
        lines.append(f"    of rank {', '.join(others)} too: {asked}")
    return ["  where its threads stood before it was ended:", *lines]


def timeline_lines(entries: Sequence[Entry], fall: float) -> list[str]:
    """Seconds before or after the fall; how wrong a clock may be where that matters."""
    lines = []
    for one in entries:
        where = one.node or "coordinator"
        rank = f" rank {one.rank}" if one.rank is not None else ""
        wrong = f" ±{one.error_s:.1f} s" if one.error_s >= 0.05 else ""
        lines.append(f"    {one.at - fall:+8.1f} s{wrong}  {where}{rank}  {one.kind}: {one.text}")
    return lines


def _at(rank: int | None, node: str | None) -> str:
    places = ([f"rank {rank}"] if rank is not None else []) + ([node] if node else [])
    return f"{' on '.join(places)}: " if places else ""

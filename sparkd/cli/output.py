"""How things look: pure functions from records to lines."""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer

from sparkd.contact import Contact
from sparkd.records.status import (
    DeploymentStatus,
    ExitStatus,
    FallStatus,
    NodeStatus,
    RankStatus,
    Status,
    WaitingFor,
)
from sparkd.records.verdict import Verdict

Paint = Callable[[str, str], str]
"""(the word that decides, the text) -> the text, coloured or not."""


class OutputFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


Output = Annotated[
    OutputFormat,
    typer.Option("--output", "-o", help="`json` prints what the API answers.", show_default=False),
]
CoordinatorUrl = Annotated[
    str | None,
    typer.Option("--coordinator", metavar="URL", help="Ask this one; `sparkd status` says which is asked."),
]

_COLOURS = {
    **dict.fromkeys(("ready", "alive", "serving"), typer.colors.GREEN),
    **dict.fromkeys(("failed", "lost", "fallen", "unkillable", "block"), typer.colors.RED),
    **dict.fromkeys(("recovering", "stopping", "suspect", "silent", "unknown", "warn"), typer.colors.YELLOW),
    **dict.fromkeys(("pending", "preflight", "launching", "loading", "warming"), typer.colors.CYAN),
}


def paint(word: str, text: str) -> str:
    """Colour for a terminal."""
    colour = _COLOURS.get(word)
    return typer.style(text, fg=colour) if colour else text


def plain(_word: str, text: str) -> str:
    return text


def paint_for(stream: Any) -> Paint:
    return paint if stream.isatty() else plain


def say(text: str) -> None:
    """A line for people that is no answer: to stderr, so that stdout stays what was asked for."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201  the one place


def show(lines: Iterable[str]) -> None:
    """Raises typer.Exit when whoever reads us has had enough (`| head`)."""
    try:
        for line in lines:
            print(line, flush=True)  # noqa: T201  the one place
    except BrokenPipeError:
        # Python would complain once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None


def clear_screen() -> None:
    print("\033[H\033[2J", end="", flush=True)  # noqa: T201  the one place


def show_json(value: object) -> None:
    """Records as the API publishes them, indented."""
    show([msgspec.json.format(msgspec.json.encode(value)).decode()])


def table(rows: Sequence[Sequence[str]], paint: Paint = plain, indent: str = "") -> list[str]:
    """Columns as wide as their widest cell; the last one is not padded."""
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = (paint(cell, cell.ljust(width)) for cell, width in zip(row, widths, strict=True))
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines


def size(count: int | None) -> str:
    """Bytes for people: `1.2 GiB`."""
    if count is None:
        return "?"
    amount, units = float(count), ("B", "KiB", "MiB", "GiB", "TiB")
    for unit in units:
        if amount < 1024 or unit == units[-1]:
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"


def duration(seconds: float) -> str:
    """`8s`, `2m05s`, `3h10m`, `4d02h`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def ago(moment: str | None, now: float) -> str:
    """How long ago an RFC 3339 moment was; `now` in seconds since 1970."""
    if not moment:
        return "-"
    try:
        return duration(now - datetime.fromisoformat(moment).timestamp())
    except ValueError:
        return moment


def clock_text(at: float) -> str:
    """Seconds since 1970 as the local time of day, to the millisecond."""
    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def exit_text(exit_status: ExitStatus) -> str:
    if exit_status.signal is not None:
        what = f"signal {exit_status.signal}"
    elif exit_status.code is not None:
        what = f"exit code {exit_status.code}"
    else:
        return "exit status unknown"
    return f"{what} ({exit_status.how})"


def waiting_text(waiting: WaitingFor, now: float) -> str:
    rank = f"rank {waiting.rank}" if waiting.rank is not None else ""
    where = f" ({rank})" if rank and rank not in waiting.what else ""
    where += f" on {waiting.node}" if waiting.node and waiting.node not in waiting.what else ""
    for_s = f" for {ago(waiting.since, now)}" if waiting.since else ""
    return f"waiting for {waiting.what}{where}{for_s}, then {waiting.then}"


def verdict_lines(verdicts: Iterable[Verdict], paint: Paint = plain, indent: str = "") -> list[str]:
    lines = []
    for one in verdicts:
        where = f" on {one.node}" if one.node else ""
        waived = " (waived)" if one.waived else ""
        lines.append(f"{indent}{paint(one.severity, one.severity)} {one.id}{where}{waived}: {one.title}")
        details = (("evidence", one.evidence), ("cause", one.cause), ("do", one.remedy))
        lines += [f"{indent}  {label}: {text}" for label, text in details if text]
    return lines


def failure_lines(status: DeploymentStatus, paint: Paint = plain) -> list[str]:
    """Why a deployment failed: reason, first failing rank with its exit status and lines, what to do."""
    lines = [f"{status.name}: {paint(status.phase, status.phase)}: {status.reason}"]
    if fall := status.last_fall:
        lines.append(f"  first failing rank: {_fall_text(fall)} (generation {fall.generation})")
        lines += [f"    | {line}" for line in fall.lines]
        lines += [f"  do: {fall.remedy}"] if fall.remedy else []
    lines += verdict_lines(status.verdicts, paint, "  ")
    lines.append(f"  its log: sparkd logs {status.name}; once cured, `sparkd up` starts it again")
    return lines


def endpoint_lines(status: DeploymentStatus) -> list[str]:
    """Where the model answers, and a request to try."""
    endpoint = status.endpoint
    if endpoint is None:
        return []
    url = endpoint.base_url.rstrip("/")
    model = endpoint.models[0] if endpoint.models else status.name
    key = f' -H "Authorization: Bearer $(sparkd key {status.name})"' if endpoint.key_file else ""
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    return [
        f"{status.name} answers at {url}",
        f"  curl {url}/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'",
    ]


def status_lines(status: Status, contact: Contact, now: float, paint: Paint = plain) -> list[str]:
    """`now` in seconds since 1970, for ages."""
    lines = [f"coordinator {contact.url} ({contact.how})"]
    for one in status.deployments:
        lines += ["", *deployment_lines(one, now, paint)]
    if not status.deployments:
        lines += [
            "",
            "no deployments; `sparkd up PROFILE` makes one, `sparkd profiles list` shows what there is",
        ]
    return [*lines, "", *node_lines(status.nodes, paint)]


def deployment_lines(one: DeploymentStatus, now: float, paint: Paint = plain) -> list[str]:
    head = [
        one.name,
        paint(one.phase, one.phase),
        f"for {ago(one.since, now)}",
        f"generation {one.generation}",
    ]
    head.append(f"{one.falls} falls" if one.falls != 1 else "1 fall")
    head += [paint("warn", condition) for condition in one.conditions]
    head += [] if one.admit else [paint("warn", "not admitting requests")]
    lines = ["  ".join(head), f"  {one.reason}"]
    if one.waiting_for:
        lines.append(f"  {waiting_text(one.waiting_for, now)}")
    if one.endpoint and one.phase == "ready":
        lines.append(f"  {one.endpoint.base_url}  model {', '.join(one.endpoint.models)}{_proof(one)}")
    if one.left_on:
        lines.append(f"  not proved stopped on {', '.join(one.left_on)}")
    if one.last_fall and one.phase in {"failed", "recovering"}:
        lines.append(f"  last fall: rank {_fall_text(one.last_fall)}")
    lines += table([_rank_row(rank, now) for rank in one.ranks], paint, "  ")
    return lines + verdict_lines(one.verdicts, paint, "  ")


def node_lines(nodes: Sequence[NodeStatus], paint: Paint = plain) -> list[str]:
    rows = [("NODE", "STATE", "ADDRESSES", "MEMORY AVAILABLE")]
    for node in nodes:
        memory = f"{size(node.memory.available)} of {size(node.memory.total)}" if node.memory else "?"
        rows.append((node.name, node.state, ", ".join(node.addresses), memory))
    lines = table(rows, paint) if nodes else ["no nodes"]
    for node in nodes:
        lines += verdict_lines(node.verdicts, paint, "  ")
    return lines


def limit_lines(nodes: Sequence[NodeStatus]) -> list[str]:
    """Which agents cannot do everything, and where to read on."""
    return [
        f"  {node.name}'s agent cannot do {_count(len(node.limits), 'thing')}: sparkd nodes show {node.name}"
        for node in nodes
        if node.limits
    ]


def _count(number: int, what: str) -> str:
    return f"one {what}" if number == 1 else f"{number} {what}s"


def progress_text(rank: RankStatus) -> str:
    """`40 %  loading weights  1.2 GiB`, as far as known; nothing of a rank that is no more."""
    if rank.phase in {"absent", "gone"}:
        return ""
    progress = rank.progress
    percent = f"{progress.percent:.0f} %" if progress.percent is not None else ""
    rss = f"{size(progress.rss_bytes)} resident" if progress.rss_bytes else ""
    return "  ".join(part for part in (percent, progress.detail, rss) if part)


def _fall_text(fall: FallStatus) -> str:
    ended = f", {exit_text(fall.exit)}" if fall.exit else ""
    return f"{fall.rank} on {fall.node}{ended}: {fall.reason}"


def _proof(one: DeploymentStatus) -> str:
    if one.proof_age_s is None:
        return ""
    bound = f" (bound {one.proof_bound_s:.0f} s)" if one.proof_bound_s is not None else ""
    return f"  proved {one.proof_age_s:.0f} s ago{bound}"


def _rank_row(rank: RankStatus, now: float) -> tuple[str, ...]:
    pid = f"pid {rank.pid}" if rank.pid else ""
    what = exit_text(rank.exit) if rank.exit else progress_text(rank)
    return (f"rank {rank.rank}", rank.node, rank.node_address, rank.phase, ago(rank.since, now), pid, what)

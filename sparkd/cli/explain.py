import sys
from collections.abc import Sequence
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkd.cli.output import CoordinatorUrl, Output, OutputFormat

if TYPE_CHECKING:
    from sparkd.cli.output import Paint
    from sparkd.client import Client
    from sparkd.records.answer import RankStacks
    from sparkd.records.event import Event
    from sparkd.records.explanation import Cause
    from sparkd.records.incident import Incident
    from sparkd.records.status import DeploymentStatus, NodeStatus

    Now = tuple[Sequence[Event], Sequence[RankStacks]]

EXAMPLES = (
    "sparkd explain",
    "sparkd explain tiny",
    "sparkd explain tiny/3 -o json",
    "sparkd explain --log rank0.log rank1.log",
)

_TRIED = 8
"""The last events that are shown of something that is not ready yet."""
_BUNDLED = 2000
"""Lines of logs in a report."""


def explain(
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME|NAME/GENERATION|FILE…]", help="Else all.", show_default=False),
    ] = None,
    log: Annotated[
        bool, typer.Option("--log", help="Explain these log files, of any launcher.", show_default=False)
    ] = False,
    bundle: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a report without secrets and prompts, to be shown.",
            show_default=False,
        ),
    ] = None,
    output: Output = OutputFormat.TEXT,
    coordinator: CoordinatorUrl = None,
) -> None:
    """Show why a deployment is as it is: what it waits for, and its incidents, the newest first."""
    import msgspec

    from sparkd.cli.output import paint_for, show, show_json
    from sparkd.cli.session import connect, pick
    from sparkd.errors import NotFound, UsageError
    from sparkd.records.incident import Incident

    words = what or []
    if log:
        _explain_files(words, output, bundle)
        return
    if len(words) > 1:
        raise UsageError("one NAME or NAME/GENERATION; for log files say --log")
    name, generation = _parse(words[0] if words else None)
    with connect(coordinator) as session:
        status = session.client.status()
        chosen = [pick(status, name)] if name else status.deployments
        incidents = {
            one.name: msgspec.convert(session.client.incidents(one.name), list[Incident]) for one in chosen
        }
        now_known = {
            one.name: _of_now(session.client, one)
            for one in chosen
            if name and generation is None and one.waiting_for is not None
        }
    if name and generation is not None:
        incidents[name] = [one for one in incidents[name] if one.generation == generation]
        if not incidents[name]:
            raise NotFound(
                f"no incident of {name} in generation {generation}; `sparkd explain {name}` lists them"
            )
    nodes = {one.name: [node for node in status.nodes if node.name in _nodes_of(one)] for one in chosen}
    if bundle is not None:
        _write_bundle(bundle, {"deployments": chosen, "incidents": incidents, "nodes": nodes})
    if output is OutputFormat.JSON:
        bodies = {one.name: explain_json(one, incidents[one.name]) for one in chosen}
        for waits, (tried, stacks) in now_known.items():
            bodies[waits] |= {"tried": [one.wire() for one in tried], "stacks": stacks}
        show_json(bodies[name] if name else bodies)
        return
    paint = paint_for(sys.stdout)
    for one in chosen:
        is_whole = generation is None
        known = now_known.get(one.name, ((), ()))
        show(
            explain_lines(one, incidents[one.name], nodes[one.name], time(), paint, known, is_whole=is_whole)
        )


def _of_now(client: "Client", one: "DeploymentStatus") -> "Now":
    """Of what is not there yet: what happened so far, and where the rank is that is waited for."""
    from sparkd.errors import SparkdError

    events: tuple[Event, ...] = ()
    stacks: list[RankStacks] = []
    waiting = one.waiting_for
    running = {rank.rank for rank in one.ranks if rank.pid is not None}
    try:
        events = client.recent_events(limit=_TRIED, deployment=one.name)
        if waiting is not None and waiting.rank in running:
            stacks = client.stacks(one.name, rank=waiting.rank)
    except SparkdError:  # it has moved on, or the node does not answer: the rest is known all the same
        pass
    return events, tuple(stacks)


def _nodes_of(one: "DeploymentStatus") -> set[str]:
    return {rank.node for rank in one.ranks}


def _write_bundle(file: Path, body: dict[str, Any]) -> None:
    """One JSON file that its owner may read before anybody else does. Raises UsageError where it cannot."""
    import os

    import msgspec

    import sparkd
    from sparkd.cli.output import say
    from sparkd.diagnosis.redact import redacted
    from sparkd.errors import UsageError

    plain = msgspec.json.decode(msgspec.json.encode({"sparkd": sparkd.__version__, **body}))
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(msgspec.json.format(msgspec.json.encode(redacted(plain))))
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from error
    say(f"wrote {file}; look through it before you show it to anybody")


def _explain_files(words: list[str], output: OutputFormat, bundle: Path | None) -> None:
    from dataclasses import replace

    from sparkd.cli.explanation import explanation_lines
    from sparkd.cli.logfiles import read_logs
    from sparkd.cli.output import paint_for, show, show_json
    from sparkd.diagnosis.explanation import explain as explain_evidence
    from sparkd.errors import UsageError

    if not words:
        raise UsageError("name the log files: sparkd explain --log rank0.log rank1.log")
    evidence, unread = read_logs([Path(word) for word in words])
    told = explain_evidence(evidence)
    told = replace(told, not_known=(*told.not_known, *unread))
    if bundle is not None:
        seen = {"files": words, "lines": evidence.lines[-_BUNDLED:], "kernel": evidence.kernel[-_BUNDLED:]}
        _write_bundle(bundle, {"explanation": told, **seen})
    if output is OutputFormat.JSON:
        show_json(told)
    else:
        show(explanation_lines(told, paint_for(sys.stdout)))


def _parse(what: str | None) -> tuple[str | None, int | None]:
    from sparkd.errors import UsageError

    if what is None:
        return None, None
    name, slash, generation = what.partition("/")
    if slash and not generation.isdecimal():
        raise UsageError(f"{what!r}: NAME or NAME/GENERATION, such as tiny/3")
    return name, int(generation) if slash else None


def explain_json(status: "DeploymentStatus", incidents: list["Incident"]) -> dict[str, Any]:
    """Design §11: cause, what followed and verdicts of the newest incident; then the deployment as it is."""
    from sparkd.records.explanation import Explanation

    newest = (incidents[0].explanation if incidents else None) or Explanation(
        cause=_block_of(status), verdicts=status.verdicts
    )
    return {
        "cause": newest.cause,
        "secondary": newest.secondary,
        "verdicts": newest.verdicts,
        "not_known": newest.not_known,
        "prevents": newest.prevents,
        "deployment": status,
        "incidents": incidents,
    }


def _block_of(status: "DeploymentStatus") -> "Cause | None":
    """What keeps it from starting, where it never did."""
    from sparkd.records.explanation import Cause
    from sparkd.records.verdict import Severity

    blocks = (one for one in status.verdicts if one.severity is Severity.BLOCK and not one.waived)
    first = next(blocks, None)
    return None if first is None else Cause(first.id, first.rank, first.node, first.evidence or first.title)


def explain_lines(
    status: "DeploymentStatus",
    incidents: list["Incident"],
    nodes: list["NodeStatus"],
    now: float,
    paint: "Paint",
    known: "Now" = ((), ()),
    *,
    is_whole: bool,
) -> list[str]:
    """The deployment and its nodes as they are now if `is_whole`, then its incidents."""
    from sparkd.cli.explanation import incident_lines, known_lines, waiting_lines
    from sparkd.cli.output import deployment_lines, verdict_lines

    lines = []
    if is_whole:
        lines = [*deployment_lines(status, now, paint), *waiting_lines(status, now)]
        lines += known_lines(status.name, *known, now)
        lines += [line for node in nodes for line in verdict_lines(node.verdicts, paint, "  ")]
    for place, one in enumerate(incidents):
        lines += ["", *incident_lines(status.name, one, paint, with_timeline=place == 0)]
    if not incidents:
        lines += ["", f"no incidents of {status.name}"]
    return lines

import sys
from time import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkd.cli.output import CoordinatorUrl, Output, OutputFormat

if TYPE_CHECKING:
    from sparkd.cli.output import Paint
    from sparkd.records.explanation import Explanation
    from sparkd.records.status import DeploymentStatus

EXAMPLES = (
    "sparkd explain",
    "sparkd explain tiny",
    "sparkd explain tiny/3 -o json",
    "sparkd explain --log rank0.log rank1.log",
)


def explain(
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME|NAME/GENERATION|FILE…]", help="Else all.", show_default=False),
    ] = None,
    log: Annotated[
        bool, typer.Option("--log", help="Explain these log files, of any launcher.", show_default=False)
    ] = False,
    output: Output = OutputFormat.TEXT,
    coordinator: CoordinatorUrl = None,
) -> None:
    """Show why a deployment is as it is: what it waits for, and its incidents, the newest first."""
    from sparkd.cli.output import paint_for, show, show_json
    from sparkd.cli.session import connect, pick
    from sparkd.errors import NotFound, UsageError

    words = what or []
    if log:
        _explain_files(words, output)
        return
    if len(words) > 1:
        raise UsageError("one NAME or NAME/GENERATION; for log files say --log")
    name, generation = _parse(words[0] if words else None)
    with connect(coordinator) as session:
        status = session.client.status()
        chosen = [pick(status, name)] if name else status.deployments
        incidents = {one.name: session.client.incidents(one.name) for one in chosen}
    if name and generation is not None:
        incidents[name] = [body for body in incidents[name] if body["generation"] == generation]
        if not incidents[name]:
            raise NotFound(
                f"no incident of {name} in generation {generation}; `sparkd explain {name}` lists them"
            )
    if output is OutputFormat.JSON:
        show_json(incidents[name] if name else incidents)
        return
    paint = paint_for(sys.stdout)
    for one in chosen:
        show(explain_lines(one, incidents[one.name], time(), paint, is_whole=generation is None))


def _explain_files(words: list[str], output: OutputFormat) -> None:
    from dataclasses import replace
    from pathlib import Path

    from sparkd.cli.logfiles import read_logs
    from sparkd.cli.output import paint_for, show, show_json
    from sparkd.diagnosis.explanation import explain as explain_evidence
    from sparkd.errors import UsageError

    if not words:
        raise UsageError("name the log files: sparkd explain --log rank0.log rank1.log")
    evidence, unread = read_logs([Path(word) for word in words])
    told = explain_evidence(evidence)
    told = replace(told, not_known=(*told.not_known, *unread))
    if output is OutputFormat.JSON:
        show_json(told)
    else:
        show(explanation_lines(told, paint_for(sys.stdout)))


def explanation_lines(told: "Explanation", paint: "Paint", indent: str = "") -> list[str]:
    """One sentence, then what supports it, what followed, what is not known, and what to do."""
    from sparkd.cli.output import verdict_lines

    if told.cause is None:
        head = ["nothing here tells of a fall"]
    else:
        where = _place(told.cause.rank, told.cause.node)
        head = [f"{told.verdicts[0].title}{where} ({told.cause.id})"]
    lines = [*head, *verdict_lines(told.verdicts, paint, "  ")]
    lines += [f"    | {line}" for line in told.lines]
    for one in told.secondary:
        times = f", {one.count} times" if one.count > 1 else ""
        lines.append(f"  then {one.id}{_place(one.rank, one.node)}{times}: a consequence")
    lines += [f"  not known: {gap}" for gap in told.not_known]
    return [indent + line for line in lines]


def _place(rank: int | None, node: str | None) -> str:
    at = f"rank {rank}" if rank is not None else ""
    return (f" on {at} ({node})" if node else f" on {at}") if at else (f" on {node}" if node else "")


def _parse(what: str | None) -> tuple[str | None, int | None]:
    from sparkd.errors import UsageError

    if what is None:
        return None, None
    name, slash, generation = what.partition("/")
    if slash and not generation.isdecimal():
        raise UsageError(f"{what!r}: NAME or NAME/GENERATION, such as tiny/3")
    return name, int(generation) if slash else None


def explain_lines(
    status: "DeploymentStatus", incidents: list[dict[str, Any]], now: float, paint: "Paint", *, is_whole: bool
) -> list[str]:
    """The deployment as it is now if `is_whole`, then its incidents."""
    from sparkd.cli.output import deployment_lines

    lines = deployment_lines(status, now, paint) if is_whole else []
    for body in incidents:
        lines += ["", *_incident_lines(status.name, body, paint)]
    if not incidents:
        lines += ["", f"no incidents of {status.name}"]
    return lines


def _incident_lines(name: str, body: dict[str, Any], paint: "Paint") -> list[str]:
    import msgspec

    from sparkd.cli.output import clock_text, exit_text, verdict_lines
    from sparkd.records.fall import Fall
    from sparkd.records.status import ExitStatus
    from sparkd.records.verdict import Verdict

    fall = msgspec.convert(body["fall"], Fall)
    verdicts = msgspec.convert(body.get("verdicts", ()), tuple[Verdict, ...])
    ended = exit_text(ExitStatus(fall.code, fall.signal, fall.how))
    lines = [
        f"{name}/{fall.generation}  {clock_text(fall.wall)}",
        f"  rank {fall.rank} on {fall.node}, {ended}: {fall.reason}",
    ]
    lines += [f"    | {line}" for line in fall.lines]
    lines += [f"  cause: {fall.cause}"] if fall.cause else []
    lines += [f"  do: {fall.remedy}"] if fall.remedy else []
    return lines + verdict_lines(verdicts, paint, "  ")

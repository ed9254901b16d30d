import sys
from time import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkd.cli.output import CoordinatorUrl, Output, OutputFormat

if TYPE_CHECKING:
    from sparkd.cli.output import Paint
    from sparkd.records.status import DeploymentStatus

EXAMPLES = ("sparkd explain", "sparkd explain tiny", "sparkd explain tiny/3 -o json")


def explain(
    what: Annotated[
        str | None, typer.Argument(metavar="[NAME|NAME/GENERATION]", help="Else all.", show_default=False)
    ] = None,
    output: Output = OutputFormat.TEXT,
    coordinator: CoordinatorUrl = None,
) -> None:
    """Show why a deployment is as it is: what it waits for, and its incidents, the newest first."""
    from sparkd.cli.output import paint_for, show, show_json
    from sparkd.cli.session import connect, pick
    from sparkd.errors import NotFound

    name, generation = _parse(what)
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

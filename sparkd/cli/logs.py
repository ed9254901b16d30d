from typing import TYPE_CHECKING, Annotated

import typer

from sparkd.cli.output import CoordinatorUrl, Output, OutputFormat

if TYPE_CHECKING:
    from sparkd.records.answer import LogLine

EXAMPLES = ("sparkd logs tiny -f", "sparkd logs tiny --rank 1 --since 10m", "sparkd logs tiny --previous")


def logs(
    name: Annotated[str, typer.Argument(help="The deployment.")],
    rank: Annotated[int | None, typer.Option(min=0, help="One rank only.", show_default=False)] = None,
    generation: Annotated[
        int | None, typer.Option(min=1, help="Of this attempt.", show_default=False)
    ] = None,
    previous: Annotated[bool, typer.Option("--previous", help="Of the attempt before the last.")] = False,
    since: Annotated[
        str | None,
        typer.Option(metavar="AGE|TIME", help="`90s`, `10m`, `2h`, `1d` or RFC 3339.", show_default=False),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines.")] = False,
    output: Output = OutputFormat.TEXT,
    coordinator: CoordinatorUrl = None,
) -> None:
    """Show the ranks' logs."""
    from time import time

    import msgspec

    from sparkd.cli.output import show
    from sparkd.cli.session import connect
    from sparkd.errors import UsageError

    if previous and generation is not None:
        raise UsageError("--previous and --generation say the same thing twice; use one")
    after = None if since is None else moment(since, time())
    with connect(coordinator) as session:
        if previous:
            generation = session.client.deployment(name).generation - 1
            if generation < 1:
                raise UsageError(f"{name} has no earlier attempt; leave --previous out")
        lines = session.client.logs(name, rank=rank, generation=generation, since=after, follow=follow)
        for line in lines:
            show([msgspec.json.encode(line).decode() if output is OutputFormat.JSON else log_line(line)])


def log_line(line: "LogLine") -> str:
    from sparkd.cli.output import clock_text

    mark = {"out": "|", "err": "!", "shim": "#"}[line.stream]
    return f"{clock_text(line.at)} {line.rank} {mark} {line.text}"


def moment(text: str, now: float) -> float:
    """An age (`10m`) before `now` or an RFC 3339 time, as seconds since 1970. Raises UsageError."""
    from datetime import datetime

    from sparkd.errors import UsageError

    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    if text[:-1].isdecimal() and text[-1:] in units:
        return now - int(text[:-1]) * units[text[-1]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise UsageError(
            f"--since {text}: an age such as 10m, or a time such as 2026-01-31T12:00:00Z"
        ) from None

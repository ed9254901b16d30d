import sys
from typing import Annotated

import typer

from sparkd.cli.output import CoordinatorUrl, Output, OutputFormat

EXAMPLES = (
    "sparkd fabric show",
    "sparkd fabric show -o json",
    "sparkd fabric test --nodes spark-1,spark-2",
    "sparkd fabric test --size 1G",
)

app = typer.Typer(rich_markup_mode=None, help="The network between nodes: show it, test it.")

FabricNodes = Annotated[
    str | None, typer.Option("--nodes", metavar="A,B", help="Of these nodes only.", show_default=False)
]


@app.command("show")
def show_fabric(
    nodes: FabricNodes = None, output: Output = OutputFormat.TEXT, coordinator: CoordinatorUrl = None
) -> None:
    """Draw the networks that nodes share, what ranks would use of them, and what speaks against it."""
    from sparkd.cli.output import paint_for, show, show_json, verdict_lines
    from sparkd.cli.session import connect
    from sparkd.fabric.picture import picture

    with connect(coordinator) as session:
        view = session.client.fabric(_named(nodes))
    if output is OutputFormat.JSON:
        show_json(view)
        return
    show(picture(view))
    show(verdict_lines(view.verdicts, paint_for(sys.stdout)))


@app.command("test")
def call_all(
    nodes: FabricNodes = None,
    size: Annotated[
        str | None,
        typer.Option("--size", metavar="BYTES", help="The largest sum: `64M`, `1G`. 256M if none is given."),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option("--image", metavar="I", help="In containers of this image, as ranks would run in it."),
    ] = None,
    output: Output = OutputFormat.TEXT,
    coordinator: CoordinatorUrl = None,
) -> None:
    """Have nodes call each other where their ranks would meet, then sum up as ranks do.

    TCP on ephemeral ports, MTU and round trip both ways, for which each node listens five seconds. Where all
    of that works: an all-reduce of all nodes and of each pair, by NCCL or gloo, in a rank's own python,
    environment and runtime; at most a minute each, on nodes without a rank. Exit code 1 if something is in
    the way.
    """
    from dataclasses import replace

    from sparkd.cli.output import paint_for, say, show, show_json, table, verdict_lines
    from sparkd.cli.session import connect
    from sparkd.cli.sums import Progress, lines_of, parse_size
    from sparkd.fabric.picture import call_rows
    from sparkd.records.verdict import Severity

    most = None if size is None else parse_size(size)
    paint = paint_for(sys.stdout)
    with connect(coordinator) as session:
        done = session.client.fabric_test(_named(nodes))
        verdicts = (*done.view.verdicts, *done.verdicts)
        if output is OutputFormat.TEXT:
            show([f"{done.view.topology}: {done.view.reason}", *table(call_rows(done.calls), paint)])
        if any(verdict.severity is Severity.BLOCK for verdict in verdicts):
            say("no all-reduce is tried while nodes do not reach each other")
        elif len(done.view.seats) > 1:
            progress = Progress(say)
            for test in session.client.collectives(_named(nodes), size=most, image=image):
                progress.note(test)
            done = replace(done, collectives=progress.over)
    verdicts = (*verdicts, *(verdict for test in done.collectives for verdict in test.verdicts))
    if output is OutputFormat.JSON:
        show_json(done)
    else:
        for test in done.collectives:
            show(["", *lines_of(test, paint)])
        show(verdict_lines(dict.fromkeys(verdicts), paint))
    if any(verdict.severity is Severity.BLOCK for verdict in verdicts):
        raise typer.Exit(1)


def _named(nodes: str | None) -> list[str]:
    return [name.strip() for name in (nodes or "").split(",") if name.strip()]

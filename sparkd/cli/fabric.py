import sys
from typing import Annotated

import typer

from sparkd.cli.output import CoordinatorUrl, Output, OutputFormat

EXAMPLES = ("sparkd fabric show", "sparkd fabric show -o json", "sparkd fabric test --nodes spark-1,spark-2")

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
    nodes: FabricNodes = None, output: Output = OutputFormat.TEXT, coordinator: CoordinatorUrl = None
) -> None:
    """Have nodes call each other where their ranks would meet: TCP on ephemeral ports, MTU, round trip.

    Each node listens for five seconds. Starts nothing else. Exit code 1 if something is in the way.
    """
    from sparkd.cli.output import paint_for, show, show_json, table, verdict_lines
    from sparkd.cli.session import connect
    from sparkd.fabric.picture import call_rows
    from sparkd.records.verdict import Severity

    with connect(coordinator) as session:
        done = session.client.fabric_test(_named(nodes))
    verdicts = (*done.view.verdicts, *done.verdicts)
    if output is OutputFormat.JSON:
        show_json(done)
    else:
        paint = paint_for(sys.stdout)
        show([f"{done.view.topology}: {done.view.reason}", *table(call_rows(done.calls), paint)])
        show(verdict_lines(verdicts, paint))
    if any(verdict.severity is Severity.BLOCK for verdict in verdicts):
        raise typer.Exit(1)


def _named(nodes: str | None) -> list[str]:
    return [name.strip() for name in (nodes or "").split(",") if name.strip()]

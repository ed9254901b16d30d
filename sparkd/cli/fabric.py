import sys
from typing import Annotated

import typer

from sparkd.cli.output import CoordinatorUrl, Output, OutputFormat

EXAMPLES = ("sparkd fabric show", "sparkd fabric show --nodes spark-1,spark-2 -o json")

app = typer.Typer(rich_markup_mode=None, help="The network between nodes: show it.")

FabricNodes = Annotated[
    str | None, typer.Option("--nodes", metavar="A,B", help="Of these nodes only.", show_default=False)
]


@app.callback()
def _group() -> None:
    """With one command only typer would leave its name out."""


@app.command("show")
def show_fabric(
    nodes: FabricNodes = None, output: Output = OutputFormat.TEXT, coordinator: CoordinatorUrl = None
) -> None:
    """Draw the networks that nodes share, what ranks would use of them, and what speaks against it."""
    from sparkd.cli.output import paint_for, show, show_json, verdict_lines
    from sparkd.cli.session import connect
    from sparkd.fabric.picture import picture

    with connect(coordinator) as session:
        view = session.client.fabric([name.strip() for name in (nodes or "").split(",") if name.strip()])
    if output is OutputFormat.JSON:
        show_json(view)
        return
    show(picture(view))
    show(verdict_lines(view.verdicts, paint_for(sys.stdout)))

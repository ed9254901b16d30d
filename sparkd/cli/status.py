import sys
from time import sleep, time
from typing import TYPE_CHECKING, Annotated

import typer

from sparkd.cli.output import CoordinatorUrl, Output, OutputFormat

if TYPE_CHECKING:
    from sparkd.contact import Contact
    from sparkd.records.status import Status

EXAMPLES = ("sparkd status", "sparkd status tiny -o json", "sparkd status --watch")


def status(
    name: Annotated[str | None, typer.Argument(help="One deployment only.", show_default=False)] = None,
    output: Output = OutputFormat.TEXT,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it anew each second.")] = False,
    coordinator: CoordinatorUrl = None,
) -> None:
    """Show deployments, their ranks, and nodes; and which coordinator was asked."""
    from sparkd.cli.output import clear_screen
    from sparkd.cli.session import connect

    with connect(coordinator) as session:
        while True:
            found = session.client.status()
            if watch and sys.stdout.isatty():
                clear_screen()
            _show(found, name, output, session.contact)
            if not watch:
                return
            sleep(1.0)


def _show(found: "Status", name: str | None, output: OutputFormat, contact: "Contact") -> None:
    from sparkd.cli.output import deployment_lines, paint_for, show, show_json, status_lines
    from sparkd.cli.session import pick

    paint = paint_for(sys.stdout)
    if output is OutputFormat.JSON:
        show_json(pick(found, name) if name else found)
    elif name:
        show(deployment_lines(pick(found, name), time(), paint))
    else:
        show(status_lines(found, contact, time(), paint))

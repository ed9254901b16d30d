from typing import Annotated

import typer

from sparkd.cli.output import CoordinatorUrl, Output, OutputFormat
from sparkd.records.event import Event

EXAMPLES = ("sparkd events", "sparkd events -f --deployment tiny", "sparkd events -f -o json | jq .reason")


def events(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what happens from now on.")
    ] = False,
    deployment: Annotated[
        str | None, typer.Option(help="Of one deployment only.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many past ones.")] = 50,
    output: Output = OutputFormat.TEXT,
    coordinator: CoordinatorUrl = None,
) -> None:
    """Show what happened and why; `-o json` prints one event a line."""
    import msgspec

    from sparkd.cli.output import say, show
    from sparkd.cli.session import connect

    def tell(event: Event) -> None:
        show(
            [msgspec.json.encode(event.wire()).decode() if output is OutputFormat.JSON else event_line(event)]
        )

    with connect(coordinator) as session:
        last = None
        for event in session.client.recent_events(limit=limit, deployment=deployment):
            tell(event)
            last = event.id
        if not follow:
            return
        for item in session.client.events(deployment=deployment, after=last):
            if isinstance(item, Event):
                tell(item)
            else:
                say("sparkd: the coordinator could not resume here: some events may be missing")


def event_line(event: Event) -> str:
    from sparkd.cli.output import clock_text

    what = event.deployment or event.node or "-"
    if event.generation is not None:
        what += f"/{event.generation}"
    if event.rank is not None:
        what += f" rank {event.rank}"
    if event.deployment and event.node:
        what += f" on {event.node}"
    change = f" {event.from_ or ''} -> {event.to}" if event.to else ""
    return f"{clock_text(event.at)}  {what}  {event.kind}{change}: {event.reason}"

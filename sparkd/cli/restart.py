from typing import Annotated

import typer

from sparkd.cli.output import CoordinatorUrl, Output, OutputFormat

EXAMPLES = ("sparkd restart tiny",)


def restart(
    name: Annotated[str, typer.Argument(help="The deployment.")],
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Until it is ready.")] = True,
    timeout: Annotated[float | None, typer.Option(min=0, help="Seconds to wait.", show_default=False)] = None,
    output: Output = OutputFormat.TEXT,
    coordinator: CoordinatorUrl = None,
) -> None:
    """End all ranks of a deployment and start the next generation."""
    from sparkd.cli.display import new_display
    from sparkd.cli.output import show, show_json
    from sparkd.cli.session import connect
    from sparkd.cli.up import follow, going_on, result_lines
    from sparkd.cli.wait import Patience

    with new_display(output is OutputFormat.JSON) as display, connect(coordinator) as session:
        patience = Patience(display.say)
        seen = session.client.deployment(name).generation
        with going_on(name, display):
            answer = patience.ask(lambda: session.client.restart(name, seen), only_starting=True)
            display.say(f"{name} restarts after generation {seen}")
            status = answer.deployment
            if wait:
                status = follow(session, name, display, patience, timeout, after_generation=seen)
    if output is OutputFormat.JSON:
        show_json(status)
    else:
        show(result_lines(status) if wait else [f"{name} is {status.phase}"])
    if wait and status.phase != "ready":
        raise typer.Exit(1)

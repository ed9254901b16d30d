from typing import TYPE_CHECKING, Annotated

import typer

from sparkd.cli.output import CoordinatorUrl, Output, OutputFormat

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparkd.cli.session import Session
    from sparkd.cli.wait import Patience
    from sparkd.records.status import DeploymentStatus

EXAMPLES = ("sparkd down tiny", "sparkd down --all")


def down(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME…", show_default=False)] = None,
    every: Annotated[bool, typer.Option("--all", help="Everything that is not stopped.")] = False,
    timeout: Annotated[float | None, typer.Option(min=0, help="Seconds to wait.", show_default=False)] = None,
    output: Output = OutputFormat.TEXT,
    coordinator: CoordinatorUrl = None,
) -> None:
    """Stop deployments and wait until nothing of them is left."""
    from sparkd.cli.output import show_json
    from sparkd.errors import UsageError

    if bool(names) == every:
        raise UsageError("name the deployments to stop, or give --all")
    stopped = _already_ended(names or [], coordinator)
    if stopped is None:
        stopped = _stop(names or [], every, timeout, output, coordinator)
    if output is OutputFormat.JSON:
        show_json(stopped)
    if any(one.phase != "stopped" for one in stopped):
        raise typer.Exit(1)


def _already_ended(names: list[str], coordinator: str | None) -> "list[DeploymentStatus] | None":
    """`down` of the last deployment ended the local set: doing it twice must stay harmless.

    None where a coordinator has to be asked. A local set that merely died is brought back for that.
    """
    from sparkd.cli.output import say
    from sparkd.cli.session import pick
    from sparkd.contact import find_coordinator
    from sparkd.local_set import last_status, read_local_set
    from sparkd.paths import find_paths

    paths = find_paths()
    if not find_coordinator(coordinator).is_guess:
        return None
    if died := read_local_set(paths):
        from sparkd.local import Surroundings, ensure_local_set

        ensure_local_set(died.n, Surroundings(say=say))
        return None
    status = last_status(paths)
    if status is None:
        return None
    stopped = [pick(status, name) for name in names] or list(status.deployments)
    for one in stopped:
        say(f"{one.name} is {one.phase}; the local set has ended")
    return stopped


def _stop(
    names: list[str], every: bool, timeout: float | None, output: OutputFormat, coordinator: str | None
) -> "list[DeploymentStatus]":
    from sparkd.cli.display import new_display
    from sparkd.cli.output import show
    from sparkd.cli.session import connect
    from sparkd.cli.wait import Patience, until_stopped

    with connect(coordinator) as session, new_display(output is OutputFormat.JSON) as display:
        patience = Patience(display.say)
        if every:
            names = [one.name for one in session.client.status().deployments if one.phase != "stopped"]
        stopped = [_ask(session, patience, name) for name in names]  # All at once, then wait for each.
        stopped = [
            one if one.phase == "stopped" else until_stopped(session, one.name, display, patience, timeout)
            for one in stopped
        ]
        _end_local(session, display.say)
    if output is OutputFormat.TEXT:
        show(line for one in stopped for line in _result(one))
    return stopped


def _ask(session: "Session", patience: "Patience", name: str) -> "DeploymentStatus":
    from sparkd.errors import CoordinatorUnreachable

    try:
        return patience.ask(lambda: session.client.down(name), only_starting=True).deployment
    except CoordinatorUnreachable:
        if session.left() is None:
            raise
        return session.deployment(name)  # another terminal was first, and has ended the local set


def _result(one: "DeploymentStatus") -> list[str]:
    if one.phase != "stopped":
        return [f"{one.name} is {one.phase}, asked for again meanwhile: {one.reason}"]
    left = f", not proved on {', '.join(one.left_on)}: seen to when it is back" if one.left_on else ""
    return [f"{one.name} is stopped{left}"]


def _end_local(session: "Session", say: "Callable[[str], None]") -> None:
    """The daemons of a local set live only as long as there is something for them to do or to clear up."""
    from sparkd.errors import CoordinatorUnreachable

    if not session.contact.is_local:
        return
    try:
        status = session.client.status()
    except CoordinatorUnreachable:
        if session.left() is None:
            raise
        return  # another terminal is ending it
    if any(one.phase != "stopped" or one.left_on for one in status.deployments):
        return
    from sparkd.local import end_local_set

    end_local_set()
    say("the local set has ended")

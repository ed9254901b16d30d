import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from sparkd.cli.asked import (
    EngineArgs,
    Force,
    Image,
    Name,
    Nodes,
    Profile,
    Sets,
    Variant,
    asked_for,
    deployment_name,
    with_sites_image,
)
from sparkd.cli.output import CoordinatorUrl, Output, OutputFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from sparkd.cli.display import Display
    from sparkd.cli.session import Session
    from sparkd.cli.wait import Patience
    from sparkd.records.answer import CommandAnswer
    from sparkd.records.intent import Intent
    from sparkd.records.status import DeploymentStatus

EXAMPLES = (
    "sparkd up tiny --local 2",
    "sparkd up mimo-v2.5-dflash --nodes spark-1,spark-2 --variant bf16-draft",
    "sparkd up ./my.yaml --set engine.args.max-model-len=32768",
    "sparkd up tiny -- --max-num-seqs 8",
)


def up(
    context: typer.Context,
    profile: Profile,
    engine_args: EngineArgs = None,
    name: Name = None,
    local: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="On N nodes of this machine, starting them if needed.", show_default=False
        ),
    ] = None,
    nodes: Nodes = None,
    image: Image = None,
    variant: Variant = None,
    sets: Sets = None,
    force: Force = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Until it is ready.")] = True,
    timeout: Annotated[float | None, typer.Option(min=0, help="Seconds to wait.", show_default=False)] = None,
    output: Output = OutputFormat.TEXT,
    coordinator: CoordinatorUrl = None,
) -> None:
    """Bring a model up, and wait until it is proved to answer.

    Running it again attaches to what runs, and changes nothing.
    """
    from sparkd.cli.display import new_display
    from sparkd.cli.output import show, show_json
    from sparkd.cli.wait import Patience
    from sparkd.errors import UsageError

    if local is not None and coordinator is not None:
        raise UsageError("--local starts a coordinator of its own; leave --coordinator out")
    asked = asked_for(
        profile,
        given=engine_args,
        after_dashes=context.obj,
        nodes=nodes,
        image=image,
        variants=variant,
        sets=sets,
        forced=force,
    )
    name = deployment_name(name or asked.profile_name)
    with (
        new_display(output is OutputFormat.JSON) as display,
        _session(local, coordinator, display.say) as session,
    ):
        for text in asked.verified:
            display.say(f"verified: {text}")
        patience = Patience(display.say)
        with going_on(name, display):
            asked = patience.ask(lambda: with_sites_image(session, name, asked), only_starting=True)
            answer = _ask(session, patience, name, asked)
            recorded = f", recorded on {answer.recorded_on} of {answer.nodes} nodes" if answer.nodes else ""
            display.say(f"{name} {_OUTCOMES.get(answer.outcome, answer.outcome)}{recorded}")
            status = answer.deployment
            if wait:
                status = follow(session, name, display, patience, timeout)
    if output is OutputFormat.JSON:
        show_json(status)
    elif wait:
        show(result_lines(status))
    else:
        show([f"{name} is {status.phase}; follow it with: sparkd up {profile}, or sparkd status {name}"])
    if wait and status.phase != "ready":
        raise typer.Exit(1)


_OUTCOMES = {"created": "is new", "running": "runs already", "started": "is started again"}


def _session(
    local: int | None, coordinator: str | None, say: "Callable[[str], None]"
) -> "AbstractContextManager[Session]":
    from sparkd.cli.session import connect

    if local is None:
        return connect(coordinator)
    from sparkd.local import Surroundings, ensure_local_set

    return connect(ensure_local_set(local, Surroundings(say=say)).url)


def _ask(session: "Session", patience: "Patience", name: str, intent: "Intent") -> "CommandAnswer":
    from sparkd.errors import IntentDiffers

    try:
        return patience.ask(lambda: session.client.up(name, intent), only_starting=True)
    except IntentDiffers as error:
        lines = [str(error), *(f"  {line}" for line in error.differences)]
        lines.append(f"to apply: `sparkd down {name}`, then this again; or --name for a second deployment")
        raise IntentDiffers("\n".join(lines), error.differences) from error


def follow(
    session: "Session",
    name: str,
    display: "Display",
    patience: "Patience",
    timeout: float | None,
    *,
    after_generation: int = 0,
) -> "DeploymentStatus":
    """Until settled."""
    from sparkd.cli.wait import until_settled

    return until_settled(session, name, display, patience, timeout, after_generation=after_generation)


@contextmanager
def going_on(name: str, display: "Display") -> "Iterator[None]":
    """Ctrl-C, from the moment the wish may have been heard, leaves the deployment and says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        display.say(
            f"{name} goes on without this terminal. Follow it: the same `sparkd up` again, or "
            f"`sparkd status {name} --watch`. Stop it: `sparkd down {name}`"
        )
        raise


def result_lines(status: "DeploymentStatus") -> list[str]:
    """What a wait ended in."""
    from sparkd.cli.output import endpoint_lines, failure_lines, paint_for

    if status.phase == "ready":
        return endpoint_lines(status)
    if status.phase == "failed":
        return failure_lines(status, paint_for(sys.stdout))
    return [f"{status.name} was stopped meanwhile: {status.reason}"]

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

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
    "sparkd up qwen3-235b --nodes spark-1,spark-2 --variant nvfp4-kv",
    "sparkd up ./my.yaml --set engine.args.max-model-len=32768",
    "sparkd up tiny -- --max-num-seqs 8",
)


def up(
    context: typer.Context,
    profile: Annotated[str, typer.Argument(help="A profile's name, or the path of its file.")],
    engine_args: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ENGINE ARGS…]", help="For vLLM itself.", show_default=False),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Of the deployment; else the profile's name.", show_default=False)
    ] = None,
    local: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="On N nodes of this machine, starting them if needed.", show_default=False
        ),
    ] = None,
    nodes: Annotated[
        str | None, typer.Option(metavar="A,B", help="In rank order.", show_default=False)
    ] = None,
    image: Annotated[str | None, typer.Option(help="Run this image.", show_default=False)] = None,
    variant: Annotated[list[str] | None, typer.Option(help="Of the profile.", show_default=False)] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Over the profile; null removes.", show_default=False
        ),
    ] = None,
    force: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Waive a verdict by its id.", show_default=False)
    ] = None,
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
    words = engine_words(engine_args or [], context.obj)
    asked = asked_for(profile, words, nodes, image, variant or [], sets or [], force or [])
    name = deployment_name(name or asked.profile_name)
    with (
        new_display(output is OutputFormat.JSON) as display,
        _session(local, coordinator, display.say) as session,
    ):
        patience = Patience(display.say)
        with going_on(name, display):
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


def engine_words(given: list[str], after_dashes: object) -> list[str]:
    """The words after `--`. Raises UsageError for more words than a profile before it."""
    from sparkd.errors import UsageError

    words = list(after_dashes) if isinstance(after_dashes, tuple) else []
    if given != words:
        extra = next((word for word in given if word not in words), given[0] if given else words[0])
        raise UsageError(f"unexpected {extra!r}: one PROFILE, and arguments for vLLM after `--`")
    return words


def asked_for(
    profile: str,
    words: list[str],
    nodes: str | None,
    image: str | None,
    variants: list[str],
    sets: list[str],
    forced: list[str],
) -> "Intent":
    from dataclasses import replace

    from sparkd.errors import UsageError
    from sparkd.profile.lookup import load_profile
    from sparkd.profile.merge import resolve

    chosen = nodes.split(",") if nodes is not None else []
    if not all(chosen) or len(set(chosen)) != len(chosen):
        raise UsageError(f"--nodes {nodes}: names with commas between them, each once")
    resolved = resolve(
        load_profile(profile), variants=variants, sets=sets, engine_args=words, nodes=chosen, image=image
    )
    return replace(resolved.intent, forced=tuple(forced))


def deployment_name(name: str) -> str:
    from sparkd.errors import UsageError
    from sparkd.records.names import is_deployment_name

    if not is_deployment_name(name):
        raise UsageError(
            f"{name!r} cannot name a deployment: up to 40 of a-z, 0-9 and inner hyphens; use --name"
        )
    return name


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

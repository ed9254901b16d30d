import sys
from typing import TYPE_CHECKING, Annotated

import typer

from sparkd.cli.asked import (
    EngineArgs,
    Force,
    Image,
    Name,
    Nodes,
    Sets,
    Variant,
    asked_for,
    deployment_name,
    with_sites_image,
)
from sparkd.cli.output import CoordinatorUrl, Output, OutputFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkd.cli.session import Session
    from sparkd.records.hashing import HashLine
    from sparkd.records.preflight import Member, Preflight

EXAMPLES = (
    "sparkd doctor",
    "sparkd doctor mimo-v2.5-dflash --nodes spark-1,spark-2",
    "sparkd doctor ./my.yaml -o json",
    "sparkd doctor ./my.yaml --hash",
)


def doctor(
    context: typer.Context,
    profile: Annotated[
        str | None,
        typer.Argument(help="A profile's name, or the path of its file; else the nodes alone."),
    ] = None,
    engine_args: EngineArgs = None,
    name: Name = None,
    nodes: Nodes = None,
    image: Image = None,
    variant: Variant = None,
    sets: Sets = None,
    force: Force = None,
    hash_: Annotated[
        bool,
        typer.Option(
            "--hash",
            help="Read all bytes of the model on every node too, throttled; Ctrl-C ends it.",
            show_default=False,
        ),
    ] = False,
    output: Output = OutputFormat.TEXT,
    coordinator: CoordinatorUrl = None,
) -> None:
    """Look for what would keep a launch from succeeding: on the nodes, and in the model's files there.

    Starts nothing. Exit code 1 if something blocks; every finding says what to do.
    """
    from sparkd.cli.output import show, show_json
    from sparkd.cli.session import connect
    from sparkd.errors import UsageError
    from sparkd.preflight.judge import blocks_of

    if profile is None and any((engine_args, name, nodes, image, variant, sets, force, hash_)):
        raise UsageError("these options are for a launch: name its PROFILE")
    asked = None
    if profile is not None:
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
    with connect(coordinator) as session:
        if name is not None and asked is not None:
            asked = with_sites_image(session, name, asked)
        found = session.client.preflight(name, asked)
        if asked is not None:
            found = _with_calls(found, session)
        if hash_ and name is not None and asked is not None:
            found = _with_hashes(found, session.client.hash_model(name, asked))
    if output is OutputFormat.JSON:
        show_json(found)
    else:
        show(_lines(found))
    if blocks_of(found.verdicts):
        raise typer.Exit(1)


def _with_calls(found: "Preflight", session: "Session") -> "Preflight":
    """What the nodes of a launch find when they call each other where its ranks would meet, both ways."""
    from dataclasses import replace

    from sparkd.cli.output import say
    from sparkd.errors import NotFound, Unauthorized

    names = [member.name for member in found.members]
    if len(names) < 2 or any(member.local for member in found.members):
        return found
    try:
        told = session.client.fabric_test(names).verdicts
    except Unauthorized:
        say("the nodes did not call each other: that takes a token that may operate")
        return found
    except NotFound:  # it left meanwhile, and is told of as silent
        return found
    known = {(one.id, one.node) for one in found.verdicts}
    fresh = (one for one in told if (one.id, one.node) not in known)
    return replace(found, verdicts=(*fresh, *found.verdicts))


def _with_hashes(found: "Preflight", lines: "Iterator[HashLine]") -> "Preflight":
    """Progress goes to stderr: a line for each hundredth of a node's bytes."""
    from dataclasses import replace

    from sparkd.cli.output import duration, say, size
    from sparkd.errors import Unavailable

    shown: dict[str, int] = {}
    for line in lines:
        if line.end is not None:
            say(f"read {size(line.end.bytes)} on each node in {duration(line.end.took_s)}")
            return replace(found, verdicts=(*line.end.verdicts, *found.verdicts))
        if line.step is None:
            continue
        step = line.step
        share = 100 * step.done // step.total if step.total else 0
        if step.error:
            say(f"{step.node}: {step.file + ': ' if step.file else ''}{step.error}")
        elif share > shown.get(step.node, -1):
            shown[step.node] = share
            say(f"{step.node}: {share} %, {size(step.done)} of {size(step.total)}")
    raise Unavailable("the coordinator ended before all bytes were read")


def _lines(found: "Preflight") -> "Iterator[str]":
    from sparkd.cli.output import paint_for, table, verdict_lines
    from sparkd.preflight.judge import blocks_of
    from sparkd.profile.show import memory_text

    paint = paint_for(sys.stdout)
    if found.members:
        rows = [("NODE", "vLLM", "DRIVER", "KERNEL", "MEMORY AVAILABLE", "MODEL")]
        yield from table([*rows, *(_row(member) for member in found.members)], paint)
    else:
        yield "no nodes"
    if found.memory:
        yield ""
        yield from memory_text(found.memory)
    yield ""
    yield from verdict_lines(found.verdicts, paint)
    blocks = len(blocks_of(found.verdicts))
    what = found.deployment or "a launch on these nodes"
    says = f"{blocks} of these would keep {what} from starting" if blocks else f"nothing blocks {what}"
    yield f"{says} (looked for {found.took_s:.1f} s)"


def _row(member: "Member") -> tuple[str, ...]:
    from sparkd.cli.output import size
    from sparkd.diagnosis.odd import engine_of

    machine, engine = member.machine, engine_of(member)
    if machine is None:
        return (member.name, "?", "?", "?", "?", "?")
    memory = f"{size(machine.memory.available)} of {size(machine.memory.total)}" if machine.memory else "?"
    model = size(member.models.model.bytes) if member.models is not None else "-"
    version = engine.packages.get("vllm", "-") if engine is not None else "-"
    return (member.name, version, machine.driver or "-", machine.kernel, memory, model)

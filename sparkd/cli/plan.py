import sys
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
    from sparkd.records.intent import Intent
    from sparkd.records.plan import Plan

EXAMPLES = (
    "sparkd plan tiny --local 2",
    "sparkd plan mimo-v2.5-pro --variant mtp",
    "sparkd plan ./my.yaml --local 2 -o json -- --max-num-seqs 8",
)


def plan(
    context: typer.Context,
    profile: Profile,
    engine_args: EngineArgs = None,
    name: Name = None,
    local: Annotated[
        int | None,
        typer.Option(metavar="N", help="For N nodes of this machine; asks nobody.", show_default=False),
    ] = None,
    nodes: Nodes = None,
    image: Image = None,
    variant: Variant = None,
    sets: Sets = None,
    force: Force = None,
    output: Output = OutputFormat.TEXT,
    coordinator: CoordinatorUrl = None,
) -> None:
    """Show the argv and environment of every rank, each value with its origin.

    Starts nothing. Exit code 1 if the plan has a block.
    """
    from sparkd.cli.output import paint_for, show, show_json, verdict_lines
    from sparkd.cli.session import connect
    from sparkd.errors import UsageError
    from sparkd.profile.show import plan_json, plan_lines
    from sparkd.records.verdict import Severity

    if local is not None and (coordinator is not None or nodes is not None):
        raise UsageError("--local plans for this machine; leave --nodes and --coordinator out")
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
    if local is not None:
        planned = _local_plan(name, asked, local)
    else:
        with connect(coordinator) as session:
            planned = session.client.plan(name, with_sites_image(session, name, asked))
    if output is OutputFormat.JSON:
        show_json(plan_json(planned))
    else:
        show(plan_lines(planned))
        show(verdict_lines(planned.verdicts, paint_for(sys.stdout)))
    if any(verdict.severity is Severity.BLOCK and not verdict.waived for verdict in planned.verdicts):
        raise typer.Exit(1)


def _local_plan(name: str, intent: "Intent", count: int) -> "Plan":
    """What a fresh local set would start first. Needs neither engine nor model on disk."""
    import os
    from dataclasses import replace
    from pathlib import Path

    from sparkd.local_config import agent_files
    from sparkd.local_facts import local_engine, local_model_roots, local_node_facts
    from sparkd.paths import find_paths
    from sparkd.profile.plan import build_plan
    from sparkd.records.defaults import DEFAULTS

    here = Path.cwd()
    paths = find_paths()
    facts = tuple(
        replace(node, files_folder=str(agent_files(paths, number)))
        for number, node in enumerate(
            local_node_facts(count, local_engine(os.environ, here), local_model_roots(os.environ, here)), 1
        )
    )
    return build_plan(
        name,
        intent,
        facts,
        generation=1,
        serial=1,
        api_port=intent.profile["api"]["port"] or DEFAULTS.api_port_first,
        rendezvous_port=DEFAULTS.rendezvous_port_first,
    )

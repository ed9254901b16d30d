from typing import TYPE_CHECKING, Annotated

import typer

from sparkd.cli.output import CoordinatorUrl, Output, OutputFormat

if TYPE_CHECKING:
    from sparkd.records.answer import RankStacks

EXAMPLES = ("sparkd stacks tiny", "sparkd stacks tiny --rank 1")


def stacks(
    name: Annotated[str, typer.Argument(help="The deployment.")],
    rank: Annotated[int | None, typer.Option(min=0, help="One rank only.", show_default=False)] = None,
    output: Output = OutputFormat.TEXT,
    coordinator: CoordinatorUrl = None,
) -> None:
    """Show where each thread of a deployment's processes is, at any time; it stops nothing."""
    from sparkd.cli.output import show, show_json
    from sparkd.cli.session import connect

    with connect(coordinator) as session:
        told = session.client.stacks(name, rank=rank)
    if output is OutputFormat.JSON:
        show_json(told)
    else:
        show(line for one in told for line in stack_lines(one))


def stack_lines(one: "RankStacks") -> list[str]:
    lines = [f"rank {one.rank} on {one.node}" + (f": {one.error}" if one.error else "")]
    if not one.processes and one.error is None:
        lines.append(
            "  no process of it can tell: it was started without sparkd's plug-in, or has just begun"
        )
    for process in one.processes:
        silent = "" if process.lines else f": did not answer ({process.silent or 'nobody knows why'})"
        lines += [
            f"  {process.title} (pid {process.pid}){silent}",
            *(f"    {line}" for line in process.lines),
        ]
    return lines

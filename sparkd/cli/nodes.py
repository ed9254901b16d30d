import sys
from typing import TYPE_CHECKING, Annotated

import typer

from sparkd.cli.output import CoordinatorUrl, Output, OutputFormat

if TYPE_CHECKING:
    from sparkd.records.status import NodeStatus

app = typer.Typer(rich_markup_mode=None, help="Show the machines that run agents.")


@app.command("list")
def list_nodes(output: Output = OutputFormat.TEXT, coordinator: CoordinatorUrl = None) -> None:
    """List all nodes with their state and memory."""
    from sparkd.cli.output import limit_lines, node_lines, paint_for, show, show_json
    from sparkd.cli.session import connect

    with connect(coordinator) as session:
        nodes = session.client.nodes()
    if output is OutputFormat.JSON:
        show_json(nodes)
    else:
        show([*node_lines(nodes, paint_for(sys.stdout)), *limit_lines(nodes)])


@app.command("show")
def show_node(
    name: Annotated[str, typer.Argument(help="Name or id of the node.")],
    output: Output = OutputFormat.TEXT,
    coordinator: CoordinatorUrl = None,
) -> None:
    """Show everything known about one node."""
    from sparkd.cli.output import paint_for, show, show_json, table, verdict_lines
    from sparkd.cli.session import connect
    from sparkd.errors import NotFound

    with connect(coordinator) as session:
        nodes = session.client.nodes()
    node = next((one for one in nodes if name in {one.name, one.id}), None)
    if node is None:
        raise NotFound(f"no node {name}; there are: {', '.join(one.name for one in nodes) or 'none'}")
    if output is OutputFormat.JSON:
        show_json(node)
        return
    paint = paint_for(sys.stdout)
    show(table(_rows(node), paint))
    show(verdict_lines(node.verdicts, paint))


@app.command("drain")
def drain_node(
    name: Annotated[str, typer.Argument(help="Name or id of the node.")],
    coordinator: CoordinatorUrl = None,
) -> None:
    """Give a node no new rank; what runs there goes on.

    Example: sparkd nodes drain spark-3 && sparkd restart glm
    """
    from sparkd.cli.output import show
    from sparkd.cli.session import connect

    with connect(coordinator) as session:
        session.client.drain(name)
    show([f"{name} is drained: it gets no new rank; `sparkd restart NAME` moves what runs there to a spare"])


@app.command("resume")
def resume_node(
    name: Annotated[str, typer.Argument(help="Name or id of the node.")],
    coordinator: CoordinatorUrl = None,
) -> None:
    """Let a drained node have ranks again.

    Example: sparkd nodes resume spark-3
    """
    from sparkd.cli.output import show
    from sparkd.cli.session import connect

    with connect(coordinator) as session:
        session.client.resume(name)
    show([f"{name} may get ranks again"])


def _rows(node: "NodeStatus") -> list[tuple[str, str]]:
    from sparkd.cli.output import size

    rows = [
        ("name", node.name),
        ("id", node.id),
        ("state", f"{node.state}, drained" if node.drained else node.state),
        ("addresses", ", ".join(node.addresses)),
        ("runs ranks by", ", ".join(node.runtimes) or "nothing"),
        ("privileges", ", ".join(node.privileges) or "none"),
    ]
    if node.limits:
        # The heading once: what follows under it is a list.
        heads = ("cannot", *[""] * (len(node.limits) - 1))
        rows += zip(heads, (limit.removeprefix("it cannot ") for limit in node.limits), strict=True)
    if memory := node.memory:
        rows.append(
            (
                "memory",
                f"{size(memory.available)} available, {size(memory.free)} free of {size(memory.total)}",
            )
        )
    if node.pressure.some10 is not None:
        rows.append(
            ("memory pressure", f"some {node.pressure.some10:g} %, full {node.pressure.full10 or 0:g} %")
        )
    return rows + [(f"gpu {key}", f"{value:g}") for key, value in sorted(node.gpu.items())]

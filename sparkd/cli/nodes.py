import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparkd.cli.output import CoordinatorUrl, Output, OutputFormat

if TYPE_CHECKING:
    from sparkd.records.status import NodeStatus

app = typer.Typer(
    rich_markup_mode=None, help="The machines that run agents: enrol, show, drain, upgrade, remove."
)


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


Hosts = Annotated[
    list[str],
    typer.Argument(
        metavar="[USER@]HOST...", help="As for ssh, ~/.ssh/config included; HOST becomes the node's name."
    ),
]
AcceptNew = Annotated[
    bool, typer.Option("--accept-new", help="Trust the host key of a host that was never seen, unasked.")
]
Wheels = Annotated[
    Path | None,
    typer.Option("--wheels", metavar="FOLDER", help="Look for wheels here as well.", show_default=False),
]
Offline = Annotated[bool, typer.Option("--offline", help="Fetch no wheel from the internet.")]


@app.command("add")
def add_nodes(
    hosts: Hosts,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be changed; change nothing.")
    ] = False,
    accept_new: AcceptNew = False,
    engine: Annotated[
        str | None, typer.Option("--engine", metavar="PYTHON", help="The python on the node that has vLLM.")
    ] = None,
    rank_user: Annotated[
        str | None,
        typer.Option("--rank-user", metavar="USER", help="Whom ranks run as [default: who logs in]"),
    ] = None,
    wheels: Wheels = None,
    offline: Offline = False,
    coordinator: CoordinatorUrl = None,
) -> None:
    """Make machines nodes, over SSH: keys, ssh agent and passwords as ssh; sudo where the user is not root.

    Nothing is changed on a machine before all is known; the same command again goes on where it stopped.

    Example: sparkd nodes add spark-1 ann@spark-2
    """
    from sparkd.cli.enrolling import Api, Person, enrol, find_hosts, find_stock, summary_lines
    from sparkd.cli.output import show
    from sparkd.cli.session import connect
    from sparkd.enrol.enrolment import Wishes

    person = Person(hosts)
    machines = find_hosts(hosts, person, accept_new=accept_new)
    wishes = Wishes(dry_run=dry_run, engine=engine, rank_user=rank_user)
    with connect(coordinator) as session:
        stock = find_stock(wheels, offline=offline)
        outcomes = enrol(machines, Api(session.client), stock, wishes, person)
    show(summary_lines(outcomes, dry_run=dry_run))
    if any(outcome.failed for outcome in outcomes):
        raise typer.Exit(1)


@app.command("upgrade")
def upgrade_nodes(
    hosts: Annotated[
        list[str] | None, typer.Argument(metavar="[USER@]HOST...", help="Enrolled nodes [default: all]")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be changed; change nothing.")
    ] = False,
    accept_new: AcceptNew = False,
    wheels: Wheels = None,
    offline: Offline = False,
    coordinator: CoordinatorUrl = None,
) -> None:
    """Give nodes the agent of this version of sparkd. Ranks go on: the new agent takes them over.

    Example: sparkd nodes upgrade
    """
    from sparkd.cli.enrolling import Api, Person, enrol, find_hosts, find_stock, name_of, summary_lines
    from sparkd.cli.output import say, show
    from sparkd.cli.session import connect
    from sparkd.enrol.addresses import is_here
    from sparkd.enrol.enrolment import Wishes
    from sparkd.errors import NotFound

    with connect(coordinator) as session:
        api = Api(session.client)
        enrolled = sorted(api.cluster().nodes.values())
        targets = hosts or [name for name in enrolled if not is_here(name)]
        if not hosts and len(targets) < len(enrolled):
            say("this machine is a node too; `sudo sparkd init` upgrades its agent, and the coordinator")
        strangers = [target for target in targets if name_of(target) not in enrolled]
        if strangers:
            known = ", ".join(enrolled) or "none"
            raise NotFound(f"no node is called {', '.join(strangers)} (known: {known}); `sparkd nodes add`")
        person = Person(targets)
        machines = find_hosts(targets, person, accept_new=accept_new)
        outcomes = enrol(machines, api, find_stock(wheels, offline=offline), Wishes(dry_run=dry_run), person)
    show(summary_lines(outcomes, dry_run=dry_run))
    if any(outcome.failed for outcome in outcomes):
        raise typer.Exit(1)


@app.command("remove")
def remove_nodes(
    hosts: Hosts,
    force: Annotated[
        bool, typer.Option("--force", help="Take the agent off also while ranks live there; they go on.")
    ] = False,
    accept_new: AcceptNew = False,
    coordinator: CoordinatorUrl = None,
) -> None:
    """Remove nodes, dead ones too: certificates count no more, the agents are taken off, what stays is said.

    Example: sparkd nodes remove spark-4
    """
    from sparkd.cli.enrolling import Person, find_hosts, remove
    from sparkd.cli.output import show
    from sparkd.cli.session import connect

    person = Person(hosts)
    machines = find_hosts(hosts, person, accept_new=accept_new)
    with connect(coordinator) as session:
        removals = [remove(machine, session.client, force=force) for machine in machines]
    for removal in removals:
        show(removal.lines)
    if not all(removal.is_clean for removal in removals):
        raise typer.Exit(1)


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

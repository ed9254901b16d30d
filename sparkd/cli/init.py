import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sparkd.cli.enrolling import Person
    from sparkd.enrol.host import ThisHost
    from sparkd.enrol.init import Wanted

EXAMPLES = ("sudo sparkd init", "sudo sparkd init --no-node --address 192.168.1.10")


def init(
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            help="Where agents dial this machine [default: as before, or its address on the default route]",
        ),
    ] = None,
    no_node: Annotated[
        bool, typer.Option("--no-node", help="Do not make this machine a node as well.")
    ] = False,
    name: Annotated[
        str | None, typer.Option("--name", help="This machine's name as a node [default: its host name]")
    ] = None,
    engine: Annotated[
        str | None, typer.Option("--engine", metavar="PYTHON", help="The python here that has vLLM.")
    ] = None,
    rank_user: Annotated[
        str | None, typer.Option("--rank-user", metavar="USER", help="Whom ranks here run as [default: you]")
    ] = None,
    no_service: Annotated[
        bool,
        typer.Option("--no-service", help="Authority and token only, for `sparkd coordinator run` by hand."),
    ] = False,
    wheels: Annotated[
        Path | None,
        typer.Option("--wheels", metavar="FOLDER", help="Look for wheels here as well.", show_default=False),
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Fetch no wheel from the internet.")] = False,
) -> None:
    """Make this machine the coordinator's: authority, your token, a service; and a node unless --no-node.

    Once for a cluster, as root. Asked for again it changes what is not as it should be, as after an upgrade.
    """
    from sparkd.cli.enrolling import Person
    from sparkd.enrol.addresses import agents_endpoint, management_address
    from sparkd.enrol.conversation import NODE_PYTHON
    from sparkd.enrol.host import Place, ThisHost, login_name
    from sparkd.enrol.init import Init, Wanted, cannot, known_address
    from sparkd.errors import UsageError

    user, home = login_name()
    host_name = name or socket.gethostname().partition(".")[0]
    if no_service:
        _prepare_only(user, agents_endpoint(address or management_address()))
        return
    if reason := cannot(uid=os.getuid(), has_systemd=Path("/run/systemd/system").is_dir()):
        raise UsageError(reason)
    agents = agents_endpoint(address or known_address() or management_address())
    person = Person([host_name])
    here = ThisHost(host_name, user, home, NODE_PYTHON, Place())
    wanted = Wanted(agents, user, _token_file(user, home))
    Init(here, wanted, lambda step, state, words: person.tell(host_name, step, state, words)).run()
    if no_node:
        _say_next(is_node=False)
        return
    if not _enrol_here(here, person, wanted, (engine, rank_user), wheels, offline=offline):
        raise typer.Exit(1)
    _say_next(is_node=True)


def _enrol_here(
    here: "ThisHost",
    person: "Person",
    wanted: "Wanted",
    wishes: tuple[str | None, str | None],
    wheels: Path | None,
    *,
    offline: bool,
) -> bool:
    from sparkd.cli.enrolling import Api, enrol, find_stock, summary_lines
    from sparkd.cli.output import show
    from sparkd.client import Client
    from sparkd.enrol.enrolment import Wishes

    token = wanted.token_file.read_text(encoding="utf-8").strip()
    api = Api(Client(f"http://{wanted.rest}", token))
    asked = Wishes(engine=wishes[0], rank_user=wishes[1])
    outcomes = enrol([here], api, find_stock(wheels, offline=offline), asked, person)
    show(summary_lines(outcomes, dry_run=False))
    return not any(outcome.failed for outcome in outcomes)


def _token_file(user: str, home: str) -> Path:
    """Where this person's `sparkd` looks for a token."""
    from sparkd.paths import find_paths

    if user == "root":
        return find_paths().state / "token"
    return find_paths({"HOME": home}, uid=1).state / "token"


def _prepare_only(user: str, agents: str) -> None:
    from sparkd.cli.output import show
    from sparkd.enrol.init import without_service
    from sparkd.paths import find_paths

    state = find_paths().state
    without_service(state / "coordinator", state / "token", user)
    show(
        [
            f"the authority is in {state / 'coordinator'}, your token in {state / 'token'}",
            "nothing was made a service, and this machine is no node",
            f"next: sparkd coordinator run --agents {agents}",
        ]
    )


def _say_next(*, is_node: bool) -> None:
    from sparkd.cli.output import show

    lines = [
        "for more nodes: sparkd nodes add [USER@]HOST..."
        if is_node
        else "next: sparkd nodes add [USER@]HOST..."
    ]
    if is_node:
        lines.append(
            "this machine is a node too; a coordinator on a machine that serves no rank is the safer place, "
            "because a model can take its machine down"
        )
    show(lines)

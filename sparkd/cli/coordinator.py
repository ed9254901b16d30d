from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(rich_markup_mode=None, help="Run the coordinator, and say who may speak to it.")


class TokenScope(StrEnum):
    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"


@app.command()
def token(
    name: Annotated[str, typer.Argument(help="Whose it is.")],
    scope: Annotated[
        TokenScope, typer.Option("--scope", help="operate: deployments, drain; admin: nodes besides.")
    ] = TokenScope.READ,
    revoke: Annotated[bool, typer.Option("--revoke", help="Let it count no more, at once.")] = False,
    state_dir: Annotated[
        Path | None, typer.Option("--state-dir", help="As for run.", show_default=False)
    ] = None,
) -> None:
    """Make a token for the REST API on the coordinator's machine, and show it this once.

    Example: sparkd coordinator token grafana --scope read
    """
    from sparkd.cli.output import show
    from sparkd.coordinator.tokens import mint_token, revoke_token
    from sparkd.paths import find_paths

    folder = state_dir or find_paths().state / "coordinator"
    if revoke:
        revoke_token(folder, name)
        show([f"the token of {name} counts no more"])
    else:
        show([mint_token(folder, name, scope.value)])


@app.command()
def run(
    state_dir: Annotated[
        Path | None, typer.Option("--state-dir", help="Database, holder and nodes.", show_default=False)
    ] = None,
    rest: Annotated[str, typer.Option("--rest", metavar="HOST:PORT", help="For people.")] = "127.0.0.1:7070",
    agents: Annotated[
        str, typer.Option("--agents", metavar="HOST:PORT", help="For agents.")
    ] = "127.0.0.1:7071",
    advertise: Annotated[
        list[str] | None,
        typer.Option(
            "--advertise",
            metavar="HOST:PORT",
            help="Where agents find it, if not at --agents; may be repeated, the best first.",
            show_default=False,
        ),
    ] = None,
    rest_socket: Annotated[
        Path | None,
        typer.Option("--rest-socket", help="A unix socket for people besides.", show_default=False),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            help="One token for people and agents, where `sparkd init` made no certificates.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run the coordinator in the foreground, until SIGTERM or Ctrl-C."""
    from sparkd.coordinator.serve import has_authority
    from sparkd.coordinator.serve import run as serve
    from sparkd.paths import find_paths

    state = find_paths().state
    folder = state_dir or state / "coordinator"
    if token_file is None and not has_authority(folder):
        token_file = state / "token"
    serve(
        state_dir=folder,
        rest=rest,
        agents=agents,
        token_file=token_file,
        rest_socket=rest_socket,
        advertise=tuple(advertise or ()),
    )

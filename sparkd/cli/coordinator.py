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
    from sparkd.coordinator.serve import run as serve
    from sparkd.enrol.roster import has_authority
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


@app.command()
def backup(
    file: Annotated[
        Path, typer.Argument(help="To be written; whoever has it can give orders to your nodes.")
    ],
    state_dir: Annotated[
        Path | None, typer.Option("--state-dir", help="As for run.", show_default=False)
    ] = None,
) -> None:
    """Keep what cannot be made again: the authority, the list of nodes, tokens and API keys.

    Example: sudo sparkd coordinator backup sparkd-backup.json
    """
    from sparkd.cli.output import show
    from sparkd.coordinator.backup import write_backup
    from sparkd.paths import find_paths

    roster = write_backup(state_dir or find_paths().state / "coordinator", file)
    nodes = ", ".join(roster.names.values()) or "none yet"
    show(
        [f"{file}: the coordinator {roster.holder} with its nodes ({nodes}), tokens and keys; keep it secret"]
    )


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="What `sparkd coordinator backup` wrote.")],
    state_dir: Annotated[
        Path | None, typer.Option("--state-dir", help="As for run.", show_default=False)
    ] = None,
) -> None:
    """Make this machine the coordinator's again, or another one its new machine. No coordinator may run here.

    Deployments come from what the agents remember.

    Example: sudo sparkd coordinator restore sparkd-backup.json
    """
    from sparkd.cli.output import show
    from sparkd.coordinator.backup import restore_backup
    from sparkd.coordinator.serve import locked
    from sparkd.paths import find_paths

    folder = state_dir or find_paths().state / "coordinator"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(folder):
        roster = restore_backup(file, folder)
    nodes = ", ".join(roster.names.values()) or "none"
    show(
        [
            f"{folder} is the coordinator {roster.holder}'s again, with its nodes: {nodes}",
            "what was enrolled or removed after the backup is not in it: enrol or remove it again",
            "next: sudo sparkd init, with the --address that the agents know",
        ]
    )

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(rich_markup_mode=None, help="Run the coordinator.")


@app.command()
def run(
    state_dir: Annotated[
        Path | None, typer.Option("--state-dir", help="Database, holder and nodes.", show_default=False)
    ] = None,
    rest: Annotated[str, typer.Option("--rest", metavar="HOST:PORT", help="For people.")] = "127.0.0.1:7070",
    agents: Annotated[
        str, typer.Option("--agents", metavar="HOST:PORT", help="For agents.")
    ] = "127.0.0.1:7071",
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", help="The token that every request carries.", show_default=False),
    ] = None,
) -> None:
    """Run the coordinator in the foreground, until SIGTERM or Ctrl-C."""
    from sparkd.coordinator.serve import run as serve
    from sparkd.paths import find_paths

    state = find_paths().state
    serve(
        state_dir=state_dir or state / "coordinator",
        rest=rest,
        agents=agents,
        token_file=token_file or state / "token",
    )

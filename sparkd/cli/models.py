import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from sparkd.cli.output import Output, OutputFormat

EXAMPLES = ("sparkd models verify /srv/models/org/name --profile minimax-m3",)

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Check a model's files.")


@app.callback()
def _group() -> None:
    """Keeps `verify` a word of its own while it is the only one."""


@app.command("verify", epilog=f"Example: {EXAMPLES[0]}")
def verify(
    folder: Annotated[Path, typer.Argument(metavar="PATH", help="The folder that holds config.json.")],
    profile: Annotated[
        str, typer.Option("--profile", metavar="PROFILE", help="The profile that is to serve it.")
    ],
    variant: Annotated[
        list[str] | None, typer.Option("--variant", metavar="NAME", help="As in `sparkd up`.")
    ] = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Check a checkpoint's files, names and config.json against a profile, without loading it.

    Exit code 1 if something would keep the model from being loaded, or from being right.
    """
    from sparkd.cli.output import show, show_json
    from sparkd.mods import ask_mods
    from sparkd.profile.lookup import load_profile
    from sparkd.profile.merge import resolve

    resolved = resolve(load_profile(profile), variants=variant or ()).profile
    overrides = json.dumps(resolved.engine.args.get("hf-overrides") or {})
    mods = [mod.name for mod in resolved.mods]
    answer = ask_mods(sys.executable, "verify", [str(folder.absolute()), overrides, *mods])
    blocks = [one for one in answer["findings"] if one["severity"] == "block"]
    if output is OutputFormat.JSON:
        show_json(answer)
    else:
        lines = [f"{one['severity']:<5}  {one['text']}" for one in answer["findings"]]
        verdict = f"{len(blocks)} to repair" if blocks else f"fits {profile}"
        show([*lines, f"{answer['tensors']} tensors in {folder}: {verdict}"])
    if blocks:
        raise typer.Exit(1)

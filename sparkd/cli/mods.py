import sys
from typing import Annotated, Any

import typer

from sparkd.cli.output import Output, OutputFormat

EXAMPLES = (
    "sparkd mods list",
    "sparkd mods check --python /opt/vllm/bin/python",
    "sparkd mods fingerprint mimo-fused-qkv --python /opt/vllm/bin/python",
)

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Show sparkd's changes to vLLM, and check them."
)

Python = Annotated[
    str,
    typer.Option(
        "--python", metavar="PATH", help="The python of the vLLM that is meant.", show_default=False
    ),
]


@app.command("list", epilog="Example: sparkd mods list -o json")
def list_mods(output: Output = OutputFormat.TEXT) -> None:
    """List the mods: what each does, why, where it stands upstream, and which vLLM needs it."""
    from sparkd.cli.output import show, show_json
    from sparkd.mods import ask_mods

    mods = ask_mods(sys.executable, "list")["mods"]
    if output is OutputFormat.JSON:
        show_json(mods)
        return
    for mod in mods:
        show(
            [
                mod["name"],
                f"  {mod['summary']}",
                f"  without it: {mod['why']}",
                f"  needed: {mod['needed']} (made for vLLM {mod['versions']})",
                f"  upstream: {mod['upstream']}",
                *(f"  setting {key}: {' | '.join(values)}" for key, values in mod["settings"].items()),
                "",
            ]
        )


@app.command("check", epilog="Example: sparkd mods check --python /opt/vllm/bin/python")
def check(
    python: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="The python of the vLLM that is meant.", show_default=False),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(help="The image of the vLLM that is meant, on this machine.", show_default=False),
    ] = None,
    mods: Annotated[list[str] | None, typer.Argument(metavar="[MOD]...", show_default=False)] = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Check mods against an installed vLLM, without starting it. Exit code 1 if one would be refused."""
    from sparkd.cli.output import show, show_json, table
    from sparkd.errors import UsageError
    from sparkd.mods import ask_mods, ask_mods_in_image

    if (python is None) is (image is None):
        raise UsageError("say which vLLM is meant: --python PATH, or --image IMAGE")
    names = mods or ()
    answer = (
        ask_mods(python, "check", names)
        if python is not None
        else ask_mods_in_image(image or "", "check", names)
    )
    if output is OutputFormat.JSON:
        show_json(answer)
    else:
        words = {"needed": "applies", "fixed": "not needed", "unknown": "REFUSED"}
        rows = [(mod["name"], words[mod["verdict"]], mod["reason"]) for mod in answer["mods"]]
        show([f"vLLM {answer['vllm'] or 'of unknown version'}", *table(rows)])
    if any(mod["verdict"] == "unknown" for mod in answer["mods"]):
        raise typer.Exit(1)


@app.command("fingerprint", epilog="Example: sparkd mods fingerprint mimo-config --python PATH")
def fingerprint(
    mod: Annotated[str, typer.Argument(metavar="MOD")],
    python: Python,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Print the lines for a mod's table of known sources, for the vLLM of a python."""
    from sparkd.cli.output import show, show_json
    from sparkd.mods import ask_mods

    answer = ask_mods(python, "fingerprint", [mod])
    if output is OutputFormat.JSON:
        show_json(answer)
        return
    show(_pasteable(answer))


def _pasteable(answer: dict[str, Any]) -> list[str]:
    lines = []
    for module, functions in answer["mods"][0]["targets"].items():
        if not functions:
            lines.append(f"{module}: nothing of it is wrapped, or it does not exist")
        for name, found in functions.items():
            known = f"known: {found['known']}" if found["known"] else "unknown"
            lines.append(f'{module} {name}: "{found["fingerprint"]}": NEEDED,  # {answer["vllm"]} ({known})')
    return lines

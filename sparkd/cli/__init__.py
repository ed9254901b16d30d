"""The command line. Everything is imported late: a verb loads its own file and what that needs.

`sparkd/cli/VERB.py` holds either a function `VERB` or a `typer.Typer` called `app`, and may hold EXAMPLES.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

import typer

VERBS = {
    "up": "Bring a model up, and wait until it is proved to answer.",
    "down": "Stop deployments and wait until nothing of them is left.",
    "restart": "End all ranks of a deployment and start the next generation.",
    "status": "Show deployments, their ranks, and nodes.",
    "logs": "Show the ranks' logs.",
    "events": "Show what happened and why.",
    "explain": "Show why a deployment is as it is, and its incidents.",
    "stacks": "Show where the threads of a deployment's processes are.",
    "plan": "Show what would be started, each value with its origin.",
    "doctor": "Look for what would keep a launch from succeeding; starts nothing.",
    "key": "Print the API key of a deployment.",
    "init": "Make this machine the coordinator's, once for a cluster.",
    "nodes": "Enrol, show, drain, upgrade and remove the machines that run agents.",
    "profiles": "List, show and check profiles.",
    "fabric": "Show and test the network between nodes.",
    "mods": "List sparkd's changes to vLLM, and check them against an installed one.",
    "models": "Check a model's files against what a profile needs of them.",
    "coordinator": "Run the coordinator.",
}

EXAMPLES = ("sparkd up tiny --local 2", "sparkd status", "sparkd down tiny")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code: design §11 "Exit codes". Errors become one line on stderr."""
    words = list(sys.argv[1:] if argv is None else argv)
    cut = words.index("--") if "--" in words else len(words)
    debug = "--debug" in words[:cut]
    own = [word for word in words[:cut] if word != "--debug"]
    try:
        return _run(own, words[cut:])
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if debug:
            raise
        text, code = _explained(error)
        typer.echo(f"sparkd: {text}", err=True)
        return code


def _run(own: list[str], engine: list[str]) -> int:
    app = typer.Typer(
        rich_markup_mode=None, pretty_exceptions_enable=False, help=_HELP, epilog=_epilog(EXAMPLES)
    )
    app.callback(invoke_without_command=True)(_root)
    verb = next((word for word in own if not word.startswith("-")), None)
    for name, summary in VERBS.items():
        if name == verb or "_SPARKD_COMPLETE" in os.environ:
            _load(app, name)
        elif verb not in VERBS:
            app.command(name, help=summary)(_unloaded)
    code = app(args=[*own, *engine], prog_name="sparkd", standalone_mode=False, obj=tuple(engine[1:]))
    return code if isinstance(code, int) else 0


_HELP = "Launch vLLM on several DGX Sparks, and keep it up."


def _root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Show the version."),
    debug: bool = typer.Option(False, "--debug", help="Show where an error arose."),  # noqa: ARG001  main reads it
) -> None:
    from sparkd import __version__

    if version:
        typer.echo(f"sparkd {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _load(app: typer.Typer, name: str) -> None:
    module = import_module(f"sparkd.cli.{name}")
    epilog = _epilog(getattr(module, "EXAMPLES", ()))
    if isinstance(group := getattr(module, "app", None), typer.Typer):
        app.add_typer(group, name=name, epilog=epilog)
    else:
        app.command(name, epilog=epilog)(getattr(module, name))


def _unloaded() -> None:
    """Stands for a verb in the list of all verbs, which needs its name only."""


def _epilog(examples: Sequence[str]) -> str | None:
    """The backspace keeps typer from filling the lines as if they were prose."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in examples) if examples else None


def _explained(error: Exception) -> tuple[str, int]:
    """One line that says what to do, and the exit code."""
    from sparkd.errors import SparkdError

    if isinstance(error, SparkdError):
        return str(error), error.exit_code
    if isinstance(error, typer.TyperException):
        context = getattr(error, "ctx", None)
        see = f"; see `{context.command_path} --help`" if context else ""
        return error.format_message().rstrip(".") + see, error.exit_code
    if isinstance(error, ModuleNotFoundError) and error.name in {"paramiko", "cryptography"}:
        return f"this needs {error.name}: `uv tool install 'sparkd[enrol]'`, or as you installed it", 2
    return f"a fault of sparkd's own: {type(error).__name__}: {error}; --debug shows where", 1

from typing import Annotated

import typer

from sparkd.cli.output import Output, OutputFormat

EXAMPLES = (
    "sparkd profiles list",
    "sparkd profiles show tiny",
    "sparkd profiles validate ./my.yaml",
    "sparkd profiles schema > profile.schema.json",
)

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List, show and check profiles.")

Name = Annotated[str, typer.Argument(metavar="PROFILE", help="A profile's name, or the path of its file.")]


@app.command("list", epilog="Example: sparkd profiles list -o json")
def list_profiles(output: Output = OutputFormat.TEXT) -> None:
    """List the profiles that can be named: yours, this machine's and the built-in ones."""
    from sparkd.cli.output import show, show_json, table
    from sparkd.errors import ProfileError
    from sparkd.profile.load import load_source
    from sparkd.profile.lookup import all_profiles, profile_folders

    rows: list[dict[str, object]] = []
    for name, path in all_profiles(profile_folders()).items():
        row: dict[str, object] = {"name": name, "file": str(path)}
        try:
            source = load_source(path)
        except ProfileError as error:
            row["problems"] = error.problems
        else:
            model, layout = source.profile.model, source.profile.layout
            row |= {
                "model": model.path or f"{model.id}@{model.revision}",
                "nodes": layout.ranks,
                "variants": tuple(source.variants),
            }
        rows.append(row)
    if output is OutputFormat.JSON:
        show_json(rows)
        return
    show(
        table(
            [("NAME", "NODES", "MODEL", "VARIANTS", "FILE")]
            + [
                (
                    str(row["name"]),
                    str(row.get("nodes", "-")),
                    str(row.get("model", "invalid: see `sparkd profiles validate`")),
                    ", ".join(_texts(row.get("variants"))) or "-",
                    str(row["file"]),
                )
                for row in rows
            ]
        )
    )


def _texts(value: object) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else ()


@app.command("show", epilog="Example: sparkd profiles show tiny")
def show_profile(profile: Name, output: Output = OutputFormat.TEXT) -> None:
    """Show a profile's file; with -o json as it is read, defaults filled in."""
    from sparkd.cli.output import show, show_json
    from sparkd.profile.lookup import find_profile, load_profile, profile_folders

    source = load_profile(profile)
    if output is OutputFormat.JSON:
        show_json(source.profile.model_dump(mode="json"))
        return
    path = find_profile(profile, profile_folders())
    show([f"# {path}", *path.read_text(encoding="utf-8").splitlines()])


@app.command("validate", epilog="Example: sparkd profiles validate ./my.yaml")
def validate(profile: Name, output: Output = OutputFormat.TEXT) -> None:
    """Check a profile with all its variants, and show everything that is wrong with it."""
    from sparkd.cli.output import show, show_json
    from sparkd.errors import ProfileError
    from sparkd.profile.lookup import load_profile

    problems: tuple[str, ...] = ()
    try:
        source = load_profile(profile)
    except ProfileError as error:
        problems = error.problems
    if output is OutputFormat.JSON:
        show_json({"profile": profile, "valid": not problems, "problems": problems})
    elif problems:
        show(problems)
    else:
        known = f", with variants {', '.join(source.variants)}" if source.variants else ""
        show([f"{source.where} is valid{known}"])
    if problems:
        raise typer.Exit(ProfileError.exit_code)


@app.command("schema", epilog="Example: sparkd profiles schema > profile.schema.json")
def schema(output: Output = OutputFormat.JSON) -> None:  # noqa: ARG001 - it is JSON either way
    """Print the JSON Schema of profiles, for editors."""
    from sparkd.cli.output import show
    from sparkd.profile.schema import schema_text

    show(schema_text().splitlines())

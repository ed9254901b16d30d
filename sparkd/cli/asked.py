"""What `up` and `plan` ask for: the same words on the command line, and the intent that they make."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sparkd.cli.session import Session
    from sparkd.records.intent import Intent

Profile = Annotated[str, typer.Argument(help="A profile's name, or the path of its file.")]
EngineArgs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- ENGINE ARGS…]", help="For vLLM itself.", show_default=False),
]
Name = Annotated[
    str | None, typer.Option(help="Of the deployment; else the profile's name.", show_default=False)
]
Nodes = Annotated[str | None, typer.Option(metavar="A,B", help="In rank order.", show_default=False)]
Image = Annotated[str | None, typer.Option(help="Run this image.", show_default=False)]
Variant = Annotated[list[str] | None, typer.Option(help="Of the profile.", show_default=False)]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Over the profile; null removes.", show_default=False),
]
Force = Annotated[
    list[str] | None, typer.Option(metavar="ID", help="Waive a verdict by its id.", show_default=False)
]


def asked_for(
    profile: str,
    *,
    given: list[str] | None,
    after_dashes: object,
    nodes: str | None,
    image: str | None,
    variants: list[str] | None,
    sets: list[str] | None,
    forced: list[str] | None,
) -> "Intent":
    """The intent that these words make, with the files that the profile names.

    `given` are all words after PROFILE, `after_dashes` those after `--`, which must be the same. Raises
    UsageError, NotFound or ProfileError.
    """
    from dataclasses import replace
    from pathlib import Path

    from sparkd.errors import UsageError
    from sparkd.profile.files import read_files
    from sparkd.profile.lookup import load_profile
    from sparkd.profile.merge import resolve

    words = _engine_words(given or [], after_dashes)
    chosen = nodes.split(",") if nodes is not None else []
    if not all(chosen) or len(set(chosen)) != len(chosen):
        raise UsageError(f"--nodes {nodes}: names with commas between them, each once")
    source = load_profile(profile)
    resolved = resolve(
        source, variants=variants or (), sets=sets or (), engine_args=words, nodes=chosen, image=image
    )
    files = read_files(resolved.profile.engine.files, Path(source.where).parent)
    return replace(resolved.intent, forced=tuple(forced or ()), files=files)


def with_sites_image(session: "Session", name: str, intent: "Intent") -> "Intent":
    """`[engine] image` of the settings, for a deployment that is new: one that exists has made its choice."""
    from dataclasses import replace

    from sparkd.errors import NotFound
    from sparkd.paths import find_paths
    from sparkd.settings import read_settings

    image = read_settings(find_paths().config).image
    if intent.image is not None or image is None:
        return intent
    try:
        session.client.deployment(name)
    except NotFound:
        return replace(intent, image=image)
    return intent


def _engine_words(given: list[str], after_dashes: object) -> list[str]:
    from sparkd.errors import UsageError

    words = list(after_dashes) if isinstance(after_dashes, tuple) else []
    if given != words:
        extra = next((word for word in given if word not in words), given[0] if given else words[0])
        raise UsageError(f"unexpected {extra!r}: one PROFILE, and arguments for vLLM after `--`")
    return words


def deployment_name(name: str) -> str:
    """The name as it is. Raises UsageError if it cannot name a deployment."""
    from sparkd.errors import UsageError
    from sparkd.records.names import is_deployment_name

    if not is_deployment_name(name):
        raise UsageError(
            f"{name!r} cannot name a deployment: up to 40 of a-z, 0-9 and inner hyphens; use --name"
        )
    return name

"""From the words of a command line to an intent: what `up` and `plan` have in common."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkd.records.intent import Intent


def asked_intent(
    profile: str,
    words: Sequence[str],
    nodes: str | None,
    image: str | None,
    variants: Sequence[str],
    sets: Sequence[str],
) -> "Intent":
    """PROFILE with everything laid over it; `nodes` as written (`a,b`), `words` those after `--`.

    Raises UsageError, NotFound, or ProfileError with every problem.
    """
    from sparkd.errors import UsageError
    from sparkd.profile.lookup import load_profile
    from sparkd.profile.merge import resolve

    chosen = nodes.split(",") if nodes is not None else []
    if not all(chosen) or len(set(chosen)) != len(chosen):
        raise UsageError(f"--nodes {nodes}: names with commas between them, each once")
    source = load_profile(profile)
    return resolve(source, variants=variants, sets=sets, engine_args=words, nodes=chosen, image=image).intent


def deployment_name(name: str) -> str:
    """The name, if it may name a deployment; else raises UsageError."""
    from sparkd.errors import UsageError
    from sparkd.records.names import is_deployment_name

    if not is_deployment_name(name):
        raise UsageError(
            f"{name!r} cannot name a deployment: up to 40 of a-z, 0-9 and inner hyphens; use --name"
        )
    return name

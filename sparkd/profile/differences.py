"""Whether two intents ask for the same, and what differs."""

from typing import Any

import msgspec

from sparkd.profile.layers import leaves
from sparkd.records.intent import Intent


def intent_differences(old: Intent, new: Intent) -> tuple[str, ...]:
    """What differs between two intents, as lines `key: old -> new`; empty when they ask for the same."""
    before, after = leaves(old.profile), leaves(new.profile)
    lines = [
        f"{'.'.join(path)}: {_shown(before, path)} -> {_shown(after, path)}"
        for path in sorted(before.keys() | after.keys())
        if _shown(before, path) != _shown(after, path)
    ]
    for key, was, wanted in (
        ("nodes", ", ".join(old.nodes) or "any", ", ".join(new.nodes) or "any"),
        ("image", old.image or "none", new.image or "none"),
    ):
        if was != wanted:
            lines.append(f"{key}: {was} -> {wanted}")
    lines += [
        f"engine.files: the content of {name} differs"
        for name in sorted(old.files.keys() | new.files.keys())
        if old.files.get(name) != new.files.get(name)
    ]
    if not lines and old.engine_args != new.engine_args:
        lines.append(f"engine arguments: {list(old.engine_args)} -> {list(new.engine_args)}")
    return tuple(lines)


def _shown(values: dict[tuple[str, ...], Any], path: tuple[str, ...]) -> str:
    return msgspec.json.encode(values[path]).decode() if path in values else "(not set)"

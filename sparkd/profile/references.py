"""Values of engine arguments that name something which every node has elsewhere.

`also:draft` stands for the folder in which a node has the model `draft` of `model.also`, `files:chat.jinja`
for the place at which its agent puts that file of `engine.files`. A reference is a whole value, at any depth.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_REFERENCE: Final = re.compile(r"(also|files):([A-Za-z0-9][A-Za-z0-9._-]*)")


def references(value: Any) -> Iterator[str]:
    """Every reference in a value, as written."""
    if isinstance(value, dict):
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)
    elif isinstance(value, str) and _REFERENCE.fullmatch(value):
        yield value


def with_paths(value: Any, paths: Mapping[str, str]) -> Any:
    """The value with each reference replaced by its path. `paths` is by reference."""
    if isinstance(value, dict):
        return {key: with_paths(item, paths) for key, item in value.items()}
    if isinstance(value, list):
        return [with_paths(item, paths) for item in value]
    return paths.get(value, value) if isinstance(value, str) else value

"""Small files of a profile: read where it lies, carried in the intent, put on every node by its agent."""

import base64
from collections.abc import Mapping
from pathlib import Path

from sparkd.errors import ProfileError
from sparkd.records.defaults import DEFAULTS


def read_files(files: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Content in base64 by name. `files` are paths below `folder`, the one that the profile lies in.

    Raises ProfileError for what cannot be read, lies elsewhere (a link counts as where it leads), or is too
    large: `files_bytes` of `DEFAULTS` for all of them together.
    """
    problems: list[str] = []
    found: dict[str, bytes] = {}
    for name, path in files.items():
        place = (folder / path).resolve()
        if not place.is_relative_to(folder.resolve()):
            problems.append(f"engine.files.{name}: {path} leads out of the profile's folder")
            continue
        try:
            with place.open("rb") as file:
                found[name] = file.read(DEFAULTS.files_bytes + 1)
        except OSError as error:
            problems.append(f"engine.files.{name}: {place}: {error.strerror}")
    if sum(map(len, found.values())) > DEFAULTS.files_bytes:
        problems.append(f"engine.files: more than {DEFAULTS.files_bytes >> 10} KiB together")
    if problems:
        raise ProfileError(problems)
    return {name: base64.b64encode(content).decode() for name, content in found.items()}

"""The settings of the command line: `[cli]` and `engine.image` of `*.toml` in the configuration folders.

Plain tomllib: pydantic-settings takes 0.25 s to import, more than the whole of `sparkd status`.
"""

import difflib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from sparkd.errors import UsageError


@dataclass(frozen=True, slots=True)
class Settings:
    coordinator: str | None = None
    """URL of the coordinator."""
    token_file: str | None = None
    source: str | None = None
    """The file that named the coordinator."""
    authority_file: str | None = None
    """The certificate by which a coordinator at an https URL is known."""
    image: str | None = None
    """What new deployments run in, where `--image` does not say."""


_KEYS = tuple(field.name for field in fields(Settings) if field.name not in ("source", "image"))


def read_settings(folders: Sequence[Path]) -> Settings:
    """Merge every `*.toml` of the folders, later files over earlier ones.

    Files that this user may not read are another's (`/etc/sparkd` also holds the agent's): skipped.
    Raises UsageError with file and key for what cannot be understood.
    """
    settings = Settings()
    for folder in folders:
        for file in sorted(folder.glob("*.toml")):
            try:
                document = tomllib.loads(file.read_text(encoding="utf-8"))
            except PermissionError:
                continue
            except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
                raise UsageError(f"{file}: not valid TOML: {error}") from error
            settings = _merge(settings, document.get("cli", {}), file)
            settings = _with_image(settings, document.get("engine", {}), file)
    return settings


def _with_image(settings: Settings, table: Any, file: Path) -> Settings:
    """The rest of this table is an agent's: engines by name."""
    image = table.get("image") if isinstance(table, dict) else None
    if image is None or isinstance(image, dict):
        return settings
    if not isinstance(image, str) or not image:
        raise UsageError(f"{file}: engine.image: must be a text that is not empty")
    return replace(settings, image=image)


def _merge(settings: Settings, table: Any, file: Path) -> Settings:
    if not isinstance(table, dict):
        raise UsageError(f"{file}: cli: must be a table")
    for key, value in table.items():
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(_KEYS)}"
            raise UsageError(f"{file}: cli.{key}: unknown key; {hint}")
        if not isinstance(value, str) or not value:
            raise UsageError(f"{file}: cli.{key}: must be a text that is not empty")
    if "coordinator" in table:
        settings = replace(settings, coordinator=table["coordinator"], source=str(file))
    for key in ("token_file", "authority_file"):
        if key in table:
            path = Path(table[key]).expanduser()
            settings = replace(settings, **{key: str(file.parent / path)})
    return settings

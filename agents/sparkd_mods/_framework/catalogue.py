"""The mods that there are: every module of `sparkd_mods` whose name has no leading underscore."""

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import sparkd_mods
from sparkd_mods._framework.checkpoint import Checkpoint, Finding
from sparkd_mods._framework.declare import Mod


@dataclass(frozen=True)
class Entry:
    name: str
    mod: Mod
    apply: Callable[[ModuleType], str | None]
    """Changes a freshly imported target; gives FIXED if there was nothing to do."""
    verify: Callable[[Checkpoint, Mapping[str, Any]], Iterable[Finding]] | None = None
    """What it has to say of a checkpoint, given the profile's `hf-overrides`; most say nothing."""


_NO_MOD = "fabric_probe"
"""A program of its own: what starts in the place of a rank to try the fabric."""


def names() -> list[str]:
    found = {one.name for one in pkgutil.iter_modules(sparkd_mods.__path__)} - {_NO_MOD}
    return sorted(name.replace("_", "-") for name in found if not name.startswith("_"))


def load(name: str) -> Entry:
    """Raises LookupError for a mod that does not exist."""
    if name not in names():
        raise LookupError(f"there is no mod {name}; there are: {', '.join(names())}")
    module = importlib.import_module(f"{sparkd_mods.__name__}.{name.replace('-', '_')}")
    return Entry(name, module.MOD, module.apply, getattr(module, "verify", None))


def entries() -> list[Entry]:
    return [load(name) for name in names()]

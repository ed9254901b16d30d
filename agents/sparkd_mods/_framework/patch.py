"""How a mod changes a module: one function replaced or wrapped, found by its name."""

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from sparkd_mods._framework.declare import FIXED, Mod
from sparkd_mods._framework.source import fingerprints


def replace(module: ModuleType, name: str, new: Callable[..., Any]) -> None:
    """Put `new` in the place of `function` or `Class.method`.

    Where the function was imported by name before, it is replaced too. Raises AttributeError if the module
    has no such function.
    """
    *path, last = name.split(".")
    owner: Any = module
    for part in path:
        owner = getattr(owner, part)
    original = getattr(owner, last)
    setattr(owner, last, new)
    if path:
        return
    for other in list(sys.modules.values()):
        if getattr(other, "__dict__", {}).get(last) is original:
            setattr(other, last, new)


def wrap(module: ModuleType, name: str, around: Callable[..., Any]) -> None:
    """Replace a function by one that calls `around(original, *arguments)`."""
    owner: Any = module
    for part in name.split("."):
        owner = getattr(owner, part)
    original = owner

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    replace(module, name, wrapped)


def needed(mod: Mod, module: ModuleType, name: str) -> bool:
    """Whether this function of the module is one that the mod has to change: all but the known-fixed."""
    known = next(target.functions[name] for target in mod.targets if target.module == module.__name__)
    path = module.__file__
    return path is not None and known.get(fingerprints(path, (name,))[name]) != FIXED

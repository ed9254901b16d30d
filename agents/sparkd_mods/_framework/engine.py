"""vLLM as it lies on disk: where a source is, and which version it says it is. Imports none of it."""

import importlib.metadata
import importlib.util
from collections.abc import Mapping
from pathlib import Path

from sparkd_mods._framework.declare import Target
from sparkd_mods._framework.source import fingerprints

PACKAGE = "vllm"


def version() -> str | None:
    """A source tree laid over another installation says the other's; so it decides little."""
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None


def source_of(module: str) -> Path | None:
    """The file of a module below `vllm`; None if there is none."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)  # a top-level name is found without importing anything
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(folder).joinpath(*rest)
        for candidate in (path.with_name(path.name + ".py"), path / "__init__.py"):
            if candidate.is_file():
                return candidate
    return None


def found(target: Target) -> Mapping[str, str] | None:
    """The fingerprints of what a target names; None if there is no such module."""
    path = source_of(target.module)
    return None if path is None else fingerprints(path, target.functions)

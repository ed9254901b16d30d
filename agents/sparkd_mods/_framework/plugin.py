"""The entry point: vLLM calls `register` in every process of every rank, some of them several times."""

import contextlib
import faulthandler
import functools
import hashlib
import os
import signal
from pathlib import Path
from types import ModuleType

from sparkd_mods._framework import catalogue, engine
from sparkd_mods._framework.after_import import AfterImport
from sparkd_mods._framework.decide import judge
from sparkd_mods._framework.declare import FIXED
from sparkd_mods._framework.journal import State, tell
from sparkd_mods._framework.requested import Request, requests

_CACHE = "VLLM_CACHE_ROOT"
_registered = False


class ModRefusedError(RuntimeError):
    """A required mod cannot be applied: the rank must not serve without it."""


def register() -> None:
    """Prepare this process: stacks on SIGUSR2, and each mod's targets changed once they are imported.

    Raises ModRefusedError for a required mod with a target that it does not know. Imports nothing of vLLM.
    """
    global _registered  # noqa: PLW0603 - once a process, as its sys.meta_path
    if _registered:
        return
    _registered = True
    with contextlib.suppress(ValueError, OSError):  # standard error was closed
        faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)
    asked = requests()
    if asked:
        after = AfterImport()
        entries = [_prepare(request, after) for request in asked]
        _own_cache([entry for entry in entries if entry is not None])


def _prepare(request: Request, after: AfterImport) -> catalogue.Entry | None:
    try:
        entry = catalogue.load(request.name)
    except Exception as error:  # noqa: BLE001 - a mod that does not even import is refused like any other
        _refuse(request, f"{type(error).__name__}: {error}")
        return None
    version = engine.version()
    pending = []
    told = ""
    for target in entry.mod.targets:
        found = engine.found(target)
        judged = judge(entry.mod, target, found, version)
        if judged.verdict == "unknown" and (request.unknown == "refuse" or found is None):
            _refuse(request, judged.reason, target.module)
            return None
        if judged.verdict != "fixed":
            pending.append((target, judged.reason))
        told = told or judged.reason
    tell(request.name, "pending" if pending else "not needed", told)
    for target, reason in pending:
        after.call(target.module, functools.partial(_apply, request, entry, reason))
    return entry


def _apply(request: Request, entry: catalogue.Entry, reason: str, module: ModuleType) -> None:
    try:
        outcome = entry.apply(module)
    except Exception as error:  # noqa: BLE001 - told, and raised anew if it is required
        _refuse(request, f"{type(error).__name__}: {error}", module.__name__, error)
        return
    state: State = "not needed" if outcome == FIXED else "applied"
    tell(request.name, state, reason, module.__name__)


def _refuse(request: Request, reason: str, target: str = "", cause: Exception | None = None) -> None:
    tell(request.name, "refused", reason, target)
    if request.required:
        raise ModRefusedError(f"sparkd mod {request.name} cannot be applied: {reason}") from cause


def _own_cache(entries: list[catalogue.Entry]) -> None:
    """Traits of classes are remembered by the hash of the model's file, which a mod does not change.

    So mods that change traits, or what torch.compile caches, get a cache of their own, by their sources.
    """
    changing = [entry for entry in entries if entry.mod.changes_traits]
    if not changing or "sparkd-mods" in os.environ.get(_CACHE, ""):
        return
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    digest.update(" ".join(sorted(entry.name for entry in changing)).encode())
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    root = os.environ.get(_CACHE) or str(Path(base) / "vllm")
    os.environ[_CACHE] = str(Path(root) / "sparkd-mods" / digest.hexdigest()[:12])

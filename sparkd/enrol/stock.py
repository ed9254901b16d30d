"""What this machine has in stock for nodes: bundles by kind of node, made once for all of a command."""

import threading
from collections.abc import Sequence
from pathlib import Path

from sparkd.enrol.bundle import Bundle, agent_bundle
from sparkd.enrol.probe import Probe
from sparkd.enrol.wheels import MACHINES, PYTHONS, by_hand, choose, download, lock_file, read_lock


class Stock:
    """`folders` are looked through for wheels, `cache` is one more that may be filled from the internet.

    Used from many threads.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        cache: Path,
        unit: str,
        *,
        lock: Path | None = None,
        offline: bool = False,
    ) -> None:
        self.unit = unit
        self._lockfile = lock or lock_file()
        self._folders = tuple(folders)
        self._cache = cache
        self._offline = offline
        self._lock = threading.Lock()
        self._made: dict[tuple[object, str], tuple[Bundle | None, tuple[str, ...]]] = {}
        self._boots: dict[str, str] = {}

    def bundle(self, probe: Probe) -> tuple[Bundle | None, tuple[str, ...]]:
        """The bundle for a node, or what is missing for it, in words. Nothing is said of a node for whose
        kind there are no wheels at all: that is a refusal of its own.
        """
        with self._lock:
            key = (probe.kind, probe.python_path)
            if key not in self._made:
                self._made[key] = self._make(probe)
            return self._made[key]

    def twin(self, name: str, probe: Probe) -> tuple[str, ...]:
        """Why not, if another name of this command is the same machine."""
        with self._lock:
            other = self._boots.setdefault(probe.boot or name, name)
        return () if other == name else (f"it is the same machine as {other}: a machine has one name",)

    def _make(self, probe: Probe) -> tuple[Bundle | None, tuple[str, ...]]:
        kind = probe.kind
        if kind.python not in PYTHONS or kind.machine not in MACHINES or kind.libc == (0, 0):
            return None, ()
        lock = read_lock(self._lockfile.read_text(encoding="utf-8"))
        folders = (*self._folders, self._cache)
        choice = choose(lock, folders, kind)
        why = ""
        if choice.missing and not self._offline:
            why = download(self._lockfile, kind, self._cache) or ""
            choice = choose(lock, folders, kind)
        if choice.missing:
            hint = (
                f"; fetch them where there is internet and pass --wheels: `{by_hand(self._lockfile, kind)}`"
            )
            because = f" ({why})" if why else ""
            last = f"{choice.missing[-1]}{because}{hint}"
            return None, (*choice.missing[:-1], last)
        return agent_bundle(choice.wheels, probe.python_path), ()

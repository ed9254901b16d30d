"""Shared-memory files of `process` ranks: they share the node's `/dev/shm`, and vLLM leaves them when killed.

The janitor notes which names a rank's processes map or hold open while they live. After the proof that none
of them is left it removes exactly those that no process on the node maps or holds. A process whose maps may
not be read counts as holding nothing: its user could not open ours.

POSIX semaphores (`sem.*`) are files there too. glibc makes and maps one under a passing name before it links
it to its own, so the kernel shows a removed name for it: files are recognised by device and inode.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from sparkd_agent.procfs import FileId, ProcFs

_LOOKS: Final = 3
"""Scans for which a new name stays interesting: its owner may map it a moment after it appeared."""


class ShmJanitor:
    """One for a node. Notes are kept in a file of each rank, for the agent after this one."""

    def __init__(self, procfs: ProcFs, root: str | Path = "/dev/shm") -> None:  # noqa: S108 - not temporary
        self._procfs = procfs
        self._root = str(root)
        self._notes: dict[str, _Notes] = {}

    def watch(self, rank: str, file: Path) -> None:
        """Begin with a rank, or go on with one that an earlier agent began with."""
        self._notes[rank] = _Notes(file)

    def note(self, rank: str, pids: Iterable[int], *, thorough: bool = False) -> None:
        """Look which names the processes use; in the steady state this lists one folder and stops there.

        `thorough` looks in any case: before a kill.
        """
        notes = self._notes[rank]
        if not notes.interesting(self._names()) and not thorough:
            return
        present = self._present()
        used = {key for pid in pids for key in self._used_by(pid)}
        notes.used |= {FileId(present[key], *key) for key in used if key in present}
        notes.save()

    def sweep(self, rank: str) -> tuple[str, ...]:
        """Remove what the dead rank used and nobody uses now. Returns the paths that could not be removed."""
        notes = self._notes.pop(rank, None)
        if notes is None or not notes.used:
            return ()
        held = {key for pid in self._procfs.pids() for key in self._used_by(pid)}
        left = []
        for file in sorted(notes.used):
            if (file.device, file.inode) in held:
                continue
            try:
                _remove(file)
            except OSError as error:
                left.append(f"{file.path}: {os.strerror(error.errno or 0)}")
        return tuple(left)

    def _used_by(self, pid: int) -> set[tuple[int, int]]:
        """Device and inode of the files."""
        return {(file.device, file.inode) for file in self._procfs.files_under(pid, self._root)}

    def _present(self) -> dict[tuple[int, int], str]:
        """The path of each file that is there, by device and inode."""
        found = {}
        for name in self._names():
            path = f"{self._root}/{name}"
            with contextlib.suppress(OSError):
                at = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - no path object for one call
                found[at.st_dev, at.st_ino] = path
        return found

    def _names(self) -> frozenset[str]:
        try:
            return frozenset(os.listdir(self._root))  # noqa: PTH208 - once a second for each rank
        except OSError:
            return frozenset()


class _Notes:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._looks: dict[str, int] = {}
        with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
            self.used = set(msgspec.json.decode(file.read_bytes(), type=list[FileId]))
            self._saved = frozenset(self.used)
            return
        self.used = set()
        self._saved = frozenset()

    def interesting(self, names: frozenset[str]) -> bool:
        self._looks = {name: self._looks.get(name, 0) + 1 for name in names}
        return any(looks <= _LOOKS for looks in self._looks.values())

    def save(self) -> None:
        """Without fsync: a power loss empties `/dev/shm` too. A full disk costs the next agent the notes."""
        if self.used == self._saved:
            return
        temporary = self._file.with_suffix(".tmp")
        with contextlib.suppress(OSError):
            temporary.write_bytes(msgspec.json.encode(sorted(self.used)))
            temporary.replace(self._file)
            self._saved = frozenset(self.used)


def _remove(file: FileId) -> None:
    """Unlink the file if the name still means the same one. Raises OSError."""
    try:
        now = os.stat(file.path, follow_symlinks=False)  # noqa: PTH116 - no path object for one call
    except FileNotFoundError:
        return
    if (now.st_dev, now.st_ino) == (file.device, file.inode):
        os.unlink(file.path)  # noqa: PTH108 - as above

"""The control group of a rank that systemd started: what is in it, and the kernel's own way to end it.

The shim stays in the unit's own group and moves its rank into a group below it, `rank`: so `cgroup.kill`
(version 2) ends everything of the rank at once and leaves the witness of its exit alive. On version 1, which
has no such file, the kill path signals what `cgroup.procs` lists, again and again.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

CGROUP_ROOT: Final = "/sys/fs/cgroup"
_NO_LIMIT: Final = 1 << 60
"""Version 1 has a very large number where nobody has set one."""
BELOW: Final = "rank"
"""As in `shim/leader.py`, which must do without this module."""


class Cgroup:
    """`folder` is the unit's own group. A group that is gone is empty, never an error."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._kill = -1
        # Opened now: the kill path must do without new files where it can.
        with contextlib.suppress(OSError):
            self._kill = os.open(f"{folder}/{BELOW}/cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)

    def pids(self) -> set[int]:
        """Everything in the unit's group and below, the shim too."""
        found: set[int] = set()
        for folder, _, files in os.walk(self._folder):
            if "cgroup.procs" in files:
                with contextlib.suppress(OSError):
                    found.update(map(int, Path(folder, "cgroup.procs").read_text().split()))
        return found

    def kill(self) -> bool:
        """SIGKILL to the rank, the shim spared; False where the kernel offers no such thing."""
        if self._kill < 0:
            return False
        try:
            os.write(self._kill, b"1")
        except OSError:
            return False
        return True

    def close(self) -> None:
        if self._kill >= 0:
            os.close(self._kill)
            self._kill = -1


def group_of(pid: int, root: str = CGROUP_ROOT, proc: str = "/proc") -> str | None:
    """The folder of the group that holds a process; None for a process that is gone or in the root group.

    Version 2, else version 1's, of which any hierarchy will do that the process has a group of its own in.
    """
    try:
        lines = Path(proc, str(pid), "cgroup").read_text().splitlines()
    except OSError:
        return None
    for _, kinds, path in sorted(line.split(":", 2) for line in lines):
        names = ("", "unified") if not kinds else (kinds.removeprefix("name="), *kinds.split(","))
        for folder in (f"{root}/{name}".rstrip("/") + path for name in names):
            if path != "/" and Path(folder, "cgroup.procs").exists():
                return folder
    return None


def memory_limits(paths: Iterable[str], root: Path) -> Iterator[tuple[str, int, int | None]]:
    """(group, most, used), bytes, of these groups and those above them that have a limit; version 2 or 1.

    The root's own is a container's, and holds for all that is in it.
    """
    groups = {str(one) for path in paths for one in (PurePosixPath(path), *PurePosixPath(path).parents)}
    for group in sorted(groups - {"/", "."}):
        for base, limit, used in (
            ("", "memory.max", "memory.current"),
            ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            folder = root / base / group.lstrip("/")
            most = _whole(folder / limit)
            if most is not None and most < _NO_LIMIT:
                yield group, most, _whole(folder / used)


def _whole(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # `max` is no number
        return None


def folder_of(control_group: str, root: str = CGROUP_ROOT) -> str | None:
    """Where a group of systemd lies, or will lie: version 2, beside version 1, or in its own of version 1."""
    for hierarchy in ("", "/unified", "/systemd"):
        if control_group.strip("/") and Path(f"{root}{hierarchy}", "cgroup.procs").exists():
            return f"{root}{hierarchy}{control_group}"
    return None

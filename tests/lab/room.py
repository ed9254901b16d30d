"""The namespaces and control groups of one lab. Nothing of it is outside of them, so nothing outlives them.

A holder process is PID 1 of a process namespace, so when it ends the kernel ends everything in the room:
nodes, relays, mounts, networks, the nodes' disks (a tmpfs). It ends when its standard input does, that is
with the process that made the room, also with one killed by SIGKILL.

What the kernel leaves behind are empty control groups. Their name is the lab's mark and says whose they are;
`sweep` removes those of owners that are gone, with whatever process should still be in one.
"""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

from sparkd_agent.procfs import ProcFs

MARK: Final = "sparkd-lab"
FLOOR: Final = Path("/run/sparkd-lab")
"""The room's own tmpfs, as seen from inside."""
PATIENCE_S: Final = 30.0

_PROC: Final = ProcFs()
_BESIDE: Final = Path(__file__).parent
_serial = itertools.count()


class Room:
    """Made empty; raises RuntimeError with the holder's own words when the kernel does not allow one."""

    def __init__(self) -> None:
        sweep()
        owner = _PROC.stat(os.getpid())
        assert owner is not None
        self.mark = f"{MARK}.{owner.pid}.{owner.starttime}.{next(_serial)}"
        self._groups = [tree / self.mark for tree in _trees()]
        namespaces = ("--net", "--mount", "--pid", "--mount-proc", "--propagation", "private")
        self._unshare = subprocess.Popen(
            [
                *self._joining("holder"),
                *("unshare", *namespaces, "--fork", "--kill-child=KILL", "--"),
                *(sys.executable, "-ISu", str(_BESIDE / "holder.py"), str(FLOOR)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._unshare.stdout is not None
        assert self._unshare.stderr is not None
        if self._unshare.stdout.readline() != b"ready\n":
            said = self._unshare.stderr.read().decode(errors="replace").strip()
            self._unshare.wait()
            self._remove_groups()
            raise RuntimeError(f"no room for a lab: {said}")
        (self._holder,) = children(self._unshare.pid)

    @property
    def floor(self) -> Path:
        """The room's tmpfs as this process sees it. A symbolic link below it must be a relative one."""
        return Path(f"/proc/{self._holder}/root{FLOOR}")

    @property
    def network(self) -> str:
        """The path of the network namespace in which switches and cables are."""
        return f"/proc/{self._holder}/ns/net"

    def inside(self, *argv: str) -> list[str]:
        """The command that runs `argv` in the room."""
        return ["nsenter", f"--target={self._holder}", "--net", "--mount", "--pid", "--", *argv]

    def run(self, *argv: str) -> str:
        """Raises AssertionError with what it said when it fails."""
        done = subprocess.run(
            self.inside(*argv), capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr.strip() or done.stdout.strip()}"
        return done.stdout

    def start(
        self, group: str, argv: Sequence[str], output: IO[bytes], env: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process in the room, in a control group of its own."""
        return subprocess.Popen(
            [*self._joining(group), *self.inside(*argv)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=env,
        )

    def close(self) -> None:
        """End everything in it. Idempotent."""
        for pipe in (self._unshare.stdin, self._unshare.stdout, self._unshare.stderr):
            if pipe is not None:
                pipe.close()
        try:
            self._unshare.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._unshare.kill()
            self._unshare.wait()
        self._remove_groups()

    def _joining(self, group: str) -> list[str]:
        folders = [one / group for one in self._groups]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        return [sys.executable, "-IS", str(_BESIDE / "join.py"), *map(str, folders), "--"]

    def _remove_groups(self) -> None:
        for group in self._groups:
            _remove(group)


def children(pid: int) -> list[int]:
    return [stat.pid for stat in _PROC.stats().values() if stat.ppid == pid]


def sweep() -> list[str]:
    """End and remove what labs of dead owners left; returns their marks."""
    swept = []
    for tree in _trees():
        for group in tree.glob(f"{MARK}.*"):
            _, pid, starttime, _ = group.name.split(".")
            owner = _PROC.stat(int(pid))
            if owner is None or owner.starttime != int(starttime):
                _remove(group)
                swept.append(group.name)
    return sorted(set(swept))


def _trees() -> list[Path]:
    """The hierarchies in which systemd-nspawn makes groups: version 2, and systemd's named one."""
    trees = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, options = line.split()[:4]
        if kind == "cgroup2" or (kind == "cgroup" and "name=systemd" in options.split(",")):
            trees.append(Path(place))
    return trees


def _remove(group: Path) -> None:
    """Kill what is in the group and below, then remove it; processes may take a moment to be reaped."""
    end = time.monotonic() + PATIENCE_S
    while group.exists():
        folders = sorted((Path(path) for path, _, _ in os.walk(group)), reverse=True)
        for folder in folders:
            with contextlib.suppress(FileNotFoundError):
                for pid in (folder / "cgroup.procs").read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
            with contextlib.suppress(OSError):
                folder.rmdir()
        assert time.monotonic() < end, f"{group} cannot be removed"
        time.sleep(0.02)

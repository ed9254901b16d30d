"""What the kernel says about processes. The root is an argument, so that tests can lay out their own `/proc`.

Every reader answers None (or nothing) for a process that is gone or may not be read: between two reads any
process can end, and that is never an error here.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

_TCP_LISTEN: Final = "0A"
"""`st` of /proc/net/tcp (include/net/tcp_states.h)."""

RANK_VARIABLE: Final = "SPARKD_RANK"
FOLDER_VARIABLE: Final = "SPARKD_RANK_FOLDER"
"""Tells apart ranks of one name on one machine: several agents may run there (local sets, containers)."""
"""In the environment of every process of a rank. `setproctitle` overwrites the memory that
`/proc/PID/environ` shows, so vLLM's titled processes do *not* show it; their children do."""

_MAPS_LINE: Final = re.compile(
    rb"^[0-9a-f]+-[0-9a-f]+ \S+ [0-9a-f]+ (?P<device>[0-9a-f]+:[0-9a-f]+) (?P<inode>\d+) +(?P<path>/.*)$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class ProcessRef:
    """One process of this boot. `starttime` is in clock ticks since boot; a reused pid has another one."""

    pid: int
    starttime: int


@dataclass(frozen=True, slots=True)
class Stat:
    """`/proc/PID/stat`, as far as anybody here needs it."""

    pid: int
    comm: str
    state: str
    ppid: int
    session: int
    cpu_seconds: float
    threads: int
    starttime: int
    rss_bytes: int

    @property
    def ref(self) -> ProcessRef:
        return ProcessRef(self.pid, self.starttime)

    @property
    def ended(self) -> bool:
        """Whether nothing of it runs any more. A zombie whose other threads still run has not ended."""
        return self.state in "ZX" and self.threads <= 1


@dataclass(frozen=True, slots=True)
class IoCounters:
    """Bytes: `rchar` is what `read` returned, `read_bytes` what came from a disk, mapped files included."""

    rchar: int
    read_bytes: int


@dataclass(frozen=True, slots=True, order=True)
class FileId:
    """A file that a process maps or holds open."""

    path: str
    device: int
    inode: int


class ProcFs:
    def __init__(self, root: str | Path = "/proc") -> None:
        self._root = str(root)

    def boot_id(self) -> str:
        """Names this boot of the machine; processes of another one are gone.

        Raises OSError where the kernel does not say.
        """
        return Path(self._root, "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()

    def pids(self) -> list[int]:
        return [int(name) for name in os.listdir(self._root) if name.isdigit()]  # noqa: PTH208 - 600 times a second

    def inodes(self) -> dict[int, int]:
        """Of each process's folder, by pid: one that stayed the same is the same process's."""
        with os.scandir(self._root) as entries:
            return {int(entry.name): entry.inode() for entry in entries if entry.name.isdigit()}

    def stat(self, pid: int) -> Stat | None:
        raw = self._read(pid, "stat")
        # A name may hold spaces and parentheses: the fields start after the last one.
        opening, closing = raw.find(b"("), raw.rfind(b")")
        fields = raw[closing + 2 :].split()
        if closing < 0 or len(fields) < 22:
            return None
        return Stat(
            pid=pid,
            comm=raw[opening + 1 : closing].decode(errors="replace"),
            state=fields[0].decode(),
            ppid=int(fields[1]),
            session=int(fields[3]),
            cpu_seconds=(int(fields[11]) + int(fields[12])) / TICKS_PER_S,
            threads=int(fields[17]),
            starttime=int(fields[19]),
            rss_bytes=int(fields[21]) * PAGE_BYTES,
        )

    def stats(self) -> dict[int, Stat]:
        """Every process there is. Costs about 13 µs each."""
        found = ((pid, self.stat(pid)) for pid in self.pids())
        return {pid: stat for pid, stat in found if stat is not None}

    def alive(self, ref: ProcessRef) -> bool:
        """Whether this very process (not a later one with its pid) still runs."""
        stat = self.stat(ref.pid)
        return stat is not None and stat.starttime == ref.starttime and not stat.ended

    def ref(self, pid: int) -> ProcessRef | None:
        stat = self.stat(pid)
        return None if stat is None else stat.ref

    def cmdline(self, pid: int) -> tuple[str, ...]:
        raw = self._read(pid, "cmdline")
        return tuple(os.fsdecode(word) for word in raw.split(b"\0")[:-1])

    def title(self, pid: int) -> str:
        """The command line as one text; a title set by `setproctitle` comes without its padding."""
        return " ".join(self.cmdline(pid)).rstrip()

    def environ_value(self, pid: int, name: str) -> str | None:
        wanted = os.fsencode(name) + b"="
        for entry in self._read(pid, "environ").split(b"\0"):
            if entry.startswith(wanted):
                return os.fsdecode(entry[len(wanted) :])
        return None

    def rank_name(self, pid: int) -> str | None:
        return self.environ_value(pid, RANK_VARIABLE)

    def catches(self, pid: int, signal_number: int) -> bool:
        """Whether the process has a handler of its own for the signal."""
        for line in self._read(pid, "status").splitlines():
            if line.startswith(b"SigCgt:"):
                return bool(int(line.split()[1], 16) >> (signal_number - 1) & 1)
        return False

    def io(self, pid: int) -> IoCounters | None:
        values = dict(line.split(b": ", 1) for line in self._read(pid, "io").splitlines() if b": " in line)
        try:
            return IoCounters(rchar=int(values[b"rchar"]), read_bytes=int(values[b"read_bytes"]))
        except KeyError:
            return None

    def pss(self, pid: int) -> int | None:
        """Bytes present, what others map too by the process's share of it; None if that may not be read.

        The kernel walks over all of its pages: a tenth of a second for 100 GiB, in a thread of the caller's.
        """
        for line in self._read(pid, "smaps_rollup").splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
        return None

    def wchan(self, pid: int) -> str:
        """Where in the kernel it sleeps; empty when the kernel does not say."""
        text = self._read(pid, "wchan").decode(errors="replace")
        return "" if text == "0" else text

    def descriptor_target(self, pid: int, fd: int) -> str:
        """What a descriptor of the process refers to (`pipe:[4711]`, a path); empty when unknown."""
        try:
            return os.readlink(f"{self._root}/{pid}/fd/{fd}")  # noqa: PTH115 - no file name, a kernel's word
        except OSError:
            return ""

    def files_under(self, pid: int, folder: str) -> set[FileId]:
        """Files below the folder that the process maps or holds open, by the name under which it opened them.

        That name may be gone or mean another file by now: the kernel then adds ` (deleted)` to it.
        """
        prefix = folder.rstrip("/") + "/"
        found = set()
        for match in _MAPS_LINE.finditer(self._read(pid, "maps")):
            path = os.fsdecode(match["path"])
            if path.startswith(prefix):
                major, _, minor = match["device"].partition(b":")
                device = os.makedev(int(major, 16), int(minor, 16))
                found.add(FileId(path, device, int(match["inode"])))
        directory = f"{self._root}/{pid}/fd"
        try:
            descriptors = os.listdir(directory)  # noqa: PTH208 - as above
        except OSError:
            return found
        for descriptor in descriptors:
            path = self.descriptor_target(pid, int(descriptor))
            if not path.startswith(prefix):
                continue
            try:
                at = os.stat(f"{directory}/{descriptor}")  # noqa: PTH116 - follows the kernel's link, not a path
            except OSError:
                continue
            found.add(FileId(path, at.st_dev, at.st_ino))
        return found

    def listeners(self, port: int) -> set[int]:
        """Inodes of the sockets that listen on a TCP port, of either family, whoever's they are."""
        found = set()
        for table in ("net/tcp", "net/tcp6"):
            try:
                lines = (Path(self._root) / table).read_text().splitlines()[1:]
            except OSError:
                continue
            for line in lines:
                fields = line.split()
                if fields[3] == _TCP_LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(int(fields[9]))
        return found

    def holds_socket(self, pid: int, inodes: set[int]) -> bool:
        """Whether the process has one of these sockets open; False also if that may not be read."""
        try:
            descriptors = os.listdir(f"{self._root}/{pid}/fd")  # noqa: PTH208 - as above
        except OSError:
            return False
        wanted = {f"socket:[{inode}]" for inode in inodes}
        return any(self.descriptor_target(pid, int(fd)) in wanted for fd in descriptors)

    def _read(self, pid: int, name: str) -> bytes:
        try:
            fd = os.open(f"{self._root}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            chunks = []
            while chunk := os.read(fd, 65536):
                chunks.append(chunk)
            return b"".join(chunks)
        except OSError:
            return b""
        finally:
            os.close(fd)

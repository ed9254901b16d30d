"""The first thread: the rank's pipes, its children, and nothing that can block."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import signal
import sys
import time

from sparkd_agent.shim.failpoints import passed
from sparkd_agent.shim.leader import BELOW, IGNORED, own_cgroup, start_leader
from sparkd_agent.shim.records import FORMAT, hold_folder, replace_durably, reserve
from sparkd_agent.shim.segments import Segments
from sparkd_agent.shim.writer import Writer

TYPE_CHECKING = False  # `typing` itself would cost memory for as long as the model lives
if TYPE_CHECKING:
    from typing import Any

CHUNK_BYTES = 64 * 1024
PIPE_BYTES = 1024 * 1024
BACKLOG_BYTES = 4 * 1024 * 1024
DISK_STEP_S = 0.002
DISK_PATIENCE_STEPS = 25
"""Steps for which the reader lets the rank wait for a disk that makes no progress."""
LAST_DRAIN_BYTES = 8 * 1024 * 1024
"""Read at most so much between the leader's end and its exit record, should others go on writing."""
PR_SET_CHILD_SUBREAPER = 36


def starttime_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


class Shim:
    """The first thread: pipes, children, and nothing that can block."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._name: str = spec["name"]
        folder: str = spec["folder"]
        folder_fd: int = spec["folder_fd"] if spec["folder_fd"] is not None else hold_folder(folder)
        cgroup = own_cgroup() if spec.get("unit") else None
        if cgroup is not None:
            # Now and not by the leader: an agent that hears of the rank opens what it may be killed by.
            os.mkdir(f"{cgroup}/{BELOW}")
        os.set_inheritable(folder_fd, False)  # the lock on it is this process's alone
        self._chunk_bytes = min(CHUNK_BYTES, spec["line_bytes"])
        self._stuck_at = -1
        self._poller = select.poll()
        self._wake, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._poller.register(self._wake, select.POLLIN)

        pipes, ends = {}, []
        for stream in (1, 2):
            read, write = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(read, False)
            try:
                fcntl.fcntl(read, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            except OSError:
                pass  # above the user's allowance; the usual size works too
            pipes[read] = stream
            ends.append(write)
            self._poller.register(read, select.POLLIN)
        self._pipes = pipes
        segments = Segments(f"{folder}/log", spec["segment_bytes"], spec["segments"])
        self._writer = Writer(folder, folder_fd, self._name, segments, spec["line_bytes"])
        reserve(f"{folder}/shim.json")
        self._pid, self._failure = start_leader(spec, cgroup, *ends)
        passed("shim.1-leader-started")
        record = {
            "format": FORMAT,
            "name": self._name,
            "boot": boot_id(),
            "shim": {"pid": os.getpid(), "starttime": starttime_of(os.getpid())},
            "leader": {"pid": self._pid, "starttime": starttime_of(self._pid)},
            "pipes": [os.fstat(end).st_ino for end in ends],
            "mono": time.monotonic(),
            "wall": time.time(),
            "cgroup": cgroup,
        }
        for end in ends:
            os.close(end)
        body = json.dumps(record).encode()
        try:
            replace_durably(f"{folder}/shim.json", body, folder_fd)
        except OSError:
            os.kill(self._pid, signal.SIGKILL)  # what nobody can find again must not run
            raise
        passed("shim.2-record-written")
        announce(body)
        self._writer.start()

    def run(self) -> None:
        """Until the last descendant is gone: an orphan becomes a child of a subreaper, so none is missed."""
        while self._reap():
            for fd, _ in self._poller.poll():
                if fd == self._wake:
                    self._empty_wakeup()
                else:
                    self._read(fd)
        self._drain()
        self._writer.finish()

    def _reap(self) -> bool:
        """Collect every child that ended; False when none is left at all."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._pid:
                self._pid = -1
                self._drain()
                self._writer.leader_ended(self._exit_record(pid, status))

    def _exit_record(self, pid: int, status: int) -> dict[str, Any]:
        error = os.read(self._failure, 4096).decode(errors="replace")
        os.close(self._failure)
        code = os.waitstatus_to_exitcode(status)
        return {
            "pid": pid,
            "code": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "error": error or None,
            "mono": time.monotonic(),
            "wall": time.time(),
        }

    def _drain(self) -> None:
        """Read what lies in the pipes now, so that last words stand before the exit record."""
        budget = LAST_DRAIN_BYTES
        for fd in tuple(self._pipes):
            while budget > 0 and (got := self._read(fd)):
                budget -= got

    def _read(self, fd: int) -> int:
        try:
            data = os.read(fd, self._chunk_bytes)
        except BlockingIOError:
            return 0
        if not data:
            self._poller.unregister(fd)
            os.close(fd)
            del self._pipes[fd]
        elif self._has_room():
            self._writer.chunk(self._pipes[fd], data)
        else:
            self._writer.unread_bytes += len(data)
        return len(data)

    def _has_room(self) -> bool:
        """Wait for a slow disk while it makes progress; for one that stands still, once."""
        if self._writer.backlog < BACKLOG_BYTES:
            return True
        done = self._writer.done
        if done == self._stuck_at:
            return False
        for _ in range(DISK_PATIENCE_STEPS):
            time.sleep(DISK_STEP_S)
            if self._writer.done != done:
                return True
        self._stuck_at = done
        return False

    def _empty_wakeup(self) -> None:
        try:
            os.read(self._wake, 4096)
        except BlockingIOError:
            pass


def announce(body: bytes) -> None:
    """Tell the agent that waits at the other end of stdout, then let go of it."""
    try:
        os.write(1, body)
    except OSError:
        pass  # the agent is gone; the next one reads shim.json
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def close_inherited(folder_fd: int | None) -> None:
    """What the agent's own parent left open must not stay open for as long as the model lives: somebody may
    wait for the end of such a pipe.
    """
    kept = folder_fd if folder_fd is not None else 2
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


def main() -> None:
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "this kernel has no child subreaper")
    with open(int(sys.argv[1]), "rb") as file:
        spec = json.load(file)
    if int(sys.argv[1]) == 0:
        os.open(os.devnull, os.O_RDONLY)  # nothing else may ever become descriptor 0
    close_inherited(spec["folder_fd"])
    try:
        shim = Shim(spec)
    except OSError as error:
        announce(json.dumps({"format": FORMAT, "error": str(error)}).encode())
        raise
    shim.run()
    os._exit(0)  # the writer thread may hang in a dead disk

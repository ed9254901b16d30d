"""The parent of one rank: keeps its log and its exit status, and outlives the agent that started it.

Run as `python -I -S shim.py FD NAME`; standard library only, because it lives as long as the model does.
The spec is JSON read from descriptor FD (it may hold secrets; argv is for people who read `ps`).

As a unit of systemd it runs as root although the unit names a user (`no-setuid`): the rank becomes that
user, and cannot touch what the shim writes of it. The unit has a control group; the rank gets one below it.

Files in the rank's folder, format 1 (read by `rankfolder.py`; later agents must read earlier formats):

    shim.json     {format, name, boot, shim: {pid, starttime}, leader: {pid, starttime}, pipes, mono, wall,
                  cgroup: the unit's, or null}
    exit.json     {format, name, pid, code, signal, error, mono, wall, lost_bytes}; at the leader's end
    log/<offset>  segments; the name is the offset of the first byte in the whole stream, 20 digits
    shim.err      what the shim itself had to say; empty in a good life

A log line is `MONO WALL STREAM TEXT`: nanoseconds of both clocks, then 1 (stdout), 2 (stderr), ! (the shim).
Two threads: the first one reads the pipes and reaps, and never waits for a disk; the second one writes.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import resource
import select
import signal
import sys
import time
from _queue import Empty, SimpleQueue
from _thread import allocate_lock, start_new_thread

TYPE_CHECKING = False  # `typing` itself would cost memory for as long as the model lives
if TYPE_CHECKING:
    from typing import Any

FORMAT = 1
CHUNK_BYTES = 64 * 1024
PIPE_BYTES = 1024 * 1024
BACKLOG_BYTES = 4 * 1024 * 1024
DISK_STEP_S = 0.002
DISK_PATIENCE_STEPS = 25
"""Steps for which the reader lets the rank wait for a disk that makes no progress."""
LAST_DRAIN_BYTES = 8 * 1024 * 1024
"""Read at most so much between the leader's end and its exit record, should others go on writing."""
FLUSH_S = 5.0
RECORD_BYTES = 4096
RETRY_S = 1.0
PR_SET_CHILD_SUBREAPER = 36
CGROUPS = "/sys/fs/cgroup"
BELOW = "rank"
"""The rank's own control group, below the unit's, in which the shim stays."""
RANK_OOM_SCORE = "800"
"""As `runtime/unit.py` gives the unit."""
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The shim must not end before its rank; SIGKILL for the rank is the agent's business."""


FAILPOINTS = os.environ.get("SPARKD_FAILPOINTS", "").split(",")


def passed(name: str) -> None:
    """A failpoint as in `sparkd/failpoints.py`, which this file must do without: `kill` is all it knows."""
    if f"{name}:kill" in FAILPOINTS:
        os.kill(os.getpid(), signal.SIGKILL)


def starttime_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


class Segments:
    """The rank's log on disk: whole lines only, never more than `count` x `segment_bytes`."""

    def __init__(self, folder: str, segment_bytes: int, count: int) -> None:
        self._folder = folder
        self._limit = segment_bytes
        self._count = count
        self._starts: list[int] = []
        self._fd = -1
        self._start = self._size = 0
        os.mkdir(folder, 0o700)

    def write(self, lines: bytes) -> tuple[int, str]:
        """Append whole lines, each shorter than a segment. Returns the bytes written and what stopped it."""
        written = 0
        try:
            while written < len(lines):
                room = self._limit - self._size
                end = len(lines)
                if end - written > room:
                    end = lines.rfind(b"\n", written, written + room) + 1
                if self._fd < 0 or end <= written:
                    self._rotate()
                else:
                    self._append(lines[written:end])
                    written = end
        except OSError as error:
            return written, os.strerror(error.errno or errno.EIO)
        return written, ""

    def _append(self, lines: bytes) -> None:
        done = 0
        try:
            while done < len(lines):
                done += os.write(self._fd, lines[done:])
        except OSError:
            if done:
                os.ftruncate(self._fd, self._size)  # half a line would spoil the offsets after it
                os.lseek(self._fd, self._size, os.SEEK_SET)
            raise
        self._size += done

    def _rotate(self) -> None:
        start = self._start + self._size
        while len(self._starts) >= self._count:
            os.unlink(self._path(self._starts[0]))
            del self._starts[0]
        fd = os.open(self._path(start), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._start, self._size = fd, start, 0
        self._starts.append(start)

    def _path(self, start: int) -> str:
        return f"{self._folder}/{start:020d}"


class Stream:
    """Cuts one pipe into stamped lines: at newlines and carriage returns, and where a line is too long.

    A chunk is never larger than a line may be, so only a line that spans chunks can be too long.
    """

    def __init__(self, mark: str, line_bytes: int) -> None:
        self._mark = mark
        self._limit = line_bytes
        self._partial = b""
        self._cut = 0
        self._after_return = False

    def lines(self, data: bytes, mono: int, wall: int) -> bytes:
        """The complete lines so far, stamped with the moment this chunk was read."""
        if self._after_return and data.startswith(b"\n"):
            data = data[1:]
        self._after_return = data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        head, newline, rest = data.partition(b"\n")
        self._grow(head)
        if not newline:
            return b""
        stamp = f"{mono} {wall} {self._mark} ".encode()
        first = self._finish(stamp)
        body, newline, tail = rest.rpartition(b"\n")
        self._grow(tail)
        return first + (stamp + body.replace(b"\n", b"\n" + stamp) + b"\n" if newline else b"")

    def rest(self, mono: int, wall: int) -> bytes:
        """What is left when the pipe has ended in the middle of a line."""
        if not self._partial and not self._cut:
            return b""
        return self._finish(f"{mono} {wall} {self._mark} ".encode())

    def _grow(self, part: bytes) -> None:
        room = self._limit - len(self._partial)
        self._partial += part[:room]
        self._cut += max(0, len(part) - room)

    def _finish(self, stamp: bytes) -> bytes:
        marker = f" [sparkd: {self._cut} bytes of this line were cut]".encode() if self._cut else b""
        line = stamp + self._partial + marker + b"\n"
        self._partial, self._cut = b"", 0
        return line


class Writer:
    """The second thread: everything that touches a disk. A disk that fails costs log lines, nothing else."""

    def __init__(self, folder: str, folder_fd: int, name: str, segments: Segments, line_bytes: int) -> None:
        self._folder_fd = folder_fd
        self._exit_path = f"{folder}/exit.json"
        self._name = name
        self._segments = segments
        self._streams = {1: Stream("1", line_bytes), 2: Stream("2", line_bytes)}
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._exit: dict[str, Any] | None = None
        self._lost_lines = 0
        self._lost_bytes = 0
        self._lost_why = ""
        self._finished = allocate_lock()
        # One counter for each thread, so that neither needs a lock. `unread_*` are the reader's own losses.
        self.taken = 0
        self.done = 0
        self.unread_bytes = 0
        self._unread_told = 0
        reserve(self._exit_path)

    @property
    def backlog(self) -> int:
        return self.taken - self.done

    def start(self) -> None:
        self._finished.acquire()
        start_new_thread(self._run, ())

    def chunk(self, stream: int, data: bytes) -> None:
        self.taken += len(data)
        self._queue.put((stream, data, time.monotonic_ns(), time.time_ns()))

    def leader_ended(self, record: dict[str, Any]) -> None:
        self._queue.put(record)

    def finish(self) -> None:
        """Wait until everything is written, but not for ever: a disk may hang."""
        self._queue.put(None)
        self._finished.acquire(timeout=FLUSH_S)

    def _run(self) -> None:
        try:
            while (item := self._next()) is not None:
                if isinstance(item, dict):
                    self._finish_lines()
                    self._exit = item
                elif item:
                    stream, data, mono, wall = item
                    self._write(self._streams[stream].lines(data, mono, wall))
                    self.done += len(data)
                self._write_exit()
            self._finish_lines()
            self._tell_losses()
            self._write_exit()
        finally:
            self._finished.release()

    def _next(self) -> Any:
        """The next item; an empty one from time to time while the exit record waits for room on the disk."""
        if self._exit is None:
            return self._queue.get()
        try:
            return self._queue.get(True, RETRY_S)
        except Empty:
            return ()

    def _finish_lines(self) -> None:
        mono, wall = time.monotonic_ns(), time.time_ns()
        for stream in self._streams.values():
            self._write(stream.rest(mono, wall))

    def _write(self, lines: bytes) -> None:
        if not lines:
            return
        if not self._tell_losses():
            self._lose(lines, self._lost_why)
            return
        written, why = self._segments.write(lines)
        if why:
            self._lose(lines[written:], why)

    def _lose(self, lines: bytes, why: str) -> None:
        self._lost_lines += lines.count(b"\n")
        self._lost_bytes += len(lines)
        self._lost_why = why

    def _tell_losses(self) -> bool:
        """Write one line about what was lost; False while even that cannot be written."""
        unread = self.unread_bytes - self._unread_told
        if not self._lost_bytes and not unread:
            return True
        parts = []
        if self._lost_bytes:
            parts.append(f"{self._lost_lines} lines ({self._lost_bytes} bytes) lost: {self._lost_why}")
        if unread:
            parts.append(f"{unread} bytes lost: the disk did not keep up")
        stamp = f"{time.monotonic_ns()} {time.time_ns()} ! "
        _, why = self._segments.write(f"{stamp}[sparkd: {'; '.join(parts)}]\n".encode())
        if why:
            self._lost_why = why
            return False
        self._lost_lines = self._lost_bytes = 0
        self._unread_told += unread
        return True

    def _write_exit(self) -> None:
        if self._exit is None:
            return
        lost = self._lost_bytes + self.unread_bytes - self._unread_told
        body = json.dumps({"format": FORMAT, "name": self._name, **self._exit, "lost_bytes": lost}).encode()
        passed("shim.3-exit")
        try:
            replace_durably(self._exit_path, body, self._folder_fd)
        except OSError:
            return
        passed("shim.4-exit-written")
        self._exit = None


def hold_folder(folder: str) -> int:
    """Open and lock it, for as long as this process lives. An agent that looks has it for a moment only."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def reserve(path: str) -> None:
    """Take the room for a record now: the disk may be full when it is needed. Raises OSError."""
    fd = os.open(f"{path}.tmp", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, RECORD_BYTES)
    finally:
        os.close(fd)


def replace_durably(path: str, body: bytes, folder_fd: int) -> None:
    """Write a temporary file, fsync, rename, fsync the folder. Raises OSError."""
    temporary = f"{path}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        done = 0
        while done < len(body):
            done += os.write(fd, body[done:])
        os.ftruncate(fd, len(body))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, path)
    os.fsync(folder_fd)


def own_cgroup() -> str:
    """The folder of this process's control group in the hierarchy by which systemd tells units apart.

    Version 2, also where it lies beside version 1, has `cgroup.kill`; else version 1's named one.
    """
    with open("/proc/self/cgroup", encoding="ascii") as file:
        paths = {line.split(":")[1]: line.rstrip("\n").split(":", 2)[2] for line in file}
    for root, name in ((CGROUPS, ""), (f"{CGROUPS}/unified", ""), (f"{CGROUPS}/systemd", "name=systemd")):
        folder = root + paths.get(name, "/")
        if paths.get(name, "/") != "/" and os.path.exists(f"{folder}/cgroup.procs"):
            return folder
    raise OSError(errno.ENOENT, "systemd gave the shim no control group")


def start_leader(spec: dict[str, Any], cgroup: str | None, out: int, err: int) -> tuple[int, int]:
    """Fork and exec the rank's leader in a session of its own, and in a control group below the shim's.

    Returns its pid and a descriptor that yields the text of an exec failure, or ends empty on success.
    """
    failure_read, failure_write = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            if cgroup is not None:
                join_cgroup(f"{cgroup}/{BELOW}")
            become_leader(spec, out, err)
        except OSError as error:
            reason = os.strerror(error.errno or errno.EIO)
            os.write(failure_write, f"cannot execute {spec['argv'][0]!r}: {reason}".encode(errors="replace"))
        except Exception as error:  # noqa: BLE001 - this is a forked copy: nothing may get past it
            os.write(failure_write, f"cannot execute {spec['argv'][0]!r}: {error}".encode(errors="replace"))
        finally:
            os._exit(127)
    os.close(failure_write)
    return pid, failure_read


def join_cgroup(folder: str) -> None:
    try:
        with open(f"{folder}/cgroup.procs", "w", encoding="ascii") as file:
            file.write("0")
    except OSError as error:
        raise RuntimeError(f"cannot join {folder!r}: {os.strerror(error.errno or 0)}") from error


def become_leader(spec: dict[str, Any], out: int, err: int) -> None:
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    # What this process ignores, an exec would pass on.
    for number in (*IGNORED, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    forbid_core_dumps()
    offer_to_oom()
    if spec.get("uid") is not None:
        os.setgroups(spec["groups"])
        os.setgid(spec["gid"])
        os.setuid(spec["uid"])
    try:
        os.chdir(spec["cwd"])
    except OSError as error:
        raise RuntimeError(f"no working folder {spec['cwd']!r}: {os.strerror(error.errno or 0)}") from error
    os.execvpe(spec["argv"][0], spec["argv"], spec["env"])  # noqa: S606 - an argv array, and no shell


def offer_to_oom() -> None:
    """The rank before everything else of the node: it would inherit the agent's score, which is low."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(RANK_OOM_SCORE)
    except OSError:  # not mounted, or not writable: the rank runs all the same
        pass


def forbid_core_dumps() -> None:
    """Writing the image of a process that maps half of the machine takes minutes, in which it is not dead.

    A limit of 0 keeps a file from being written, but not a handler behind a pipe (apport, systemd-coredump)
    from being fed; the kernel takes exactly 1 for both.
    """
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    except ValueError:  # the limit was 0 already, and this is no root: then at least no file is written
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


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


if __name__ == "__main__":
    main()

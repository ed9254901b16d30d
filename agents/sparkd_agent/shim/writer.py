"""The second thread."""

from __future__ import annotations

import json
import time
from _queue import Empty, SimpleQueue
from _thread import allocate_lock, start_new_thread

from sparkd_agent.shim.failpoints import passed
from sparkd_agent.shim.records import FORMAT, replace_durably, reserve
from sparkd_agent.shim.segments import Segments
from sparkd_agent.shim.stream import Stream

TYPE_CHECKING = False  # `typing` itself would cost memory for as long as the model lives
if TYPE_CHECKING:
    from typing import Any

FLUSH_S = 5.0
RETRY_S = 1.0


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

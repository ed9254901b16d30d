"""The rank's log on disk."""

from __future__ import annotations

import errno
import os


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

"""A rank's log as its shim wrote it: read by offset into the whole stream, over rotation.

A stamped line is `MONO WALL STREAM TEXT` (see `shim/`). Offsets count every byte that was ever written;
what rotation has removed is reported as skipped, never as an error.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from sparkd.engine.phrases import telling_lines

Stream = Literal["stdout", "stderr", "shim"]

_STREAMS: Final[dict[bytes, Stream]] = {b"1": "stdout", b"2": "stderr", b"!": "shim"}
_NS: Final = 1_000_000_000
_TAIL_STEP_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class LogLine:
    mono: float
    """Seconds, the node's monotonic clock."""
    wall: float
    """Seconds since 1970, the node's wall clock."""
    stream: Stream
    text: str


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Whole lines. `data` begins at `offset`, `skipped_bytes` after what was asked for."""

    offset: int
    data: bytes
    skipped_bytes: int = 0

    @property
    def next_offset(self) -> int:
        return self.offset + len(self.data)

    @property
    def lines(self) -> list[LogLine]:
        return [line for raw in self.data.splitlines() if (line := parse_line(raw)) is not None]


def parse_line(raw: bytes) -> LogLine | None:
    """None for anything that is no stamped line."""
    parts = raw.rstrip(b"\n").split(b" ", 3)
    if len(parts) < 4 or parts[2] not in _STREAMS:
        return None
    try:
        mono, wall = int(parts[0]), int(parts[1])
    except ValueError:
        return None
    return LogLine(mono / _NS, wall / _NS, _STREAMS[parts[2]], parts[3].decode(errors="replace"))


class RankLog:
    def __init__(self, folder: str | Path) -> None:
        """`folder` is the one that holds the segments (`RankFolder.log`)."""
        self._folder = Path(folder)

    @property
    def size(self) -> int:
        """Bytes ever written: the offset at which the next line will begin."""
        segments = self._segments()
        return segments[-1][0] + segments[-1][1] if segments else 0

    def read(self, offset: int, limit: int) -> LogSlice:
        """The lines from `offset` on, at most `limit` bytes of them, or from where the log still begins.

        A line longer than `limit` is returned whole, so that a reader always gets on.
        """
        for start, size, path in self._segments():
            if start + size <= offset:
                continue
            begin = max(start, offset)
            data = _whole_lines(path, begin - start, limit)
            if data is None:
                later = self.read(begin + 1, limit)  # this segment was rotated away while we looked
                return LogSlice(later.offset, later.data, later.offset - offset)
            return LogSlice(begin, data, begin - offset)
        return LogSlice(max(offset, 0), b"")

    def follow(self, offset: int, limit: int) -> LogSlice:
        """As `read`, but of a flood only the last `limit` bytes, with the rest counted as skipped."""
        end = self.size
        if end - offset <= limit:
            return self.read(offset, limit)
        begin = self._line_start(end - limit)
        found = self.read(begin, limit)
        return LogSlice(found.offset, found.data, found.offset - offset)

    def last(self, count: int, limit: int = 1 << 20) -> list[LogLine]:
        """The last `count` lines, looking at no more than the last `limit` bytes."""
        end, reach = self.size, _TAIL_STEP_BYTES
        while True:
            lines = self._lines_between(self._line_start(max(0, end - reach)), end)
            if len(lines) >= count or reach >= min(limit, end):
                return lines[-count:] if count > 0 else []
            reach *= 4

    def _lines_between(self, begin: int, end: int) -> list[LogLine]:
        lines: list[LogLine] = []
        while begin < end:
            found = self.read(begin, end - begin)
            if not found.data:
                break
            lines += found.lines
            begin = found.next_offset
        return lines

    def _line_start(self, offset: int) -> int:
        """The first start of a line at or after the offset (a segment always begins with one)."""
        for start, size, path in self._segments():
            if start >= offset:
                return start
            if start + size <= offset:
                continue
            head = _read(path, offset - start - 1, _TAIL_STEP_BYTES * 2)
            newline = head.find(b"\n")
            return offset + newline if newline >= 0 else start + size
        return offset

    def _segments(self) -> list[tuple[int, int, Path]]:
        """(offset, bytes, path), in order."""
        found = []
        try:
            paths = list(self._folder.iterdir())
        except FileNotFoundError:
            return []
        for path in paths:
            try:
                found.append((int(path.name), path.stat().st_size, path))
            except (ValueError, FileNotFoundError):
                continue
        return sorted(found)


def _whole_lines(path: Path, begin: int, limit: int) -> bytes | None:
    """Lines from `begin`; None if the segment is gone. What has no newline yet is still being written."""
    try:
        data = _read(path, begin, limit)
    except FileNotFoundError:
        return None
    end = data.rfind(b"\n") + 1
    while end == 0 and len(data) == limit:
        limit *= 2
        data = _read(path, begin, limit)
        end = data.find(b"\n") + 1
    return data[:end]


def _read(path: Path, begin: int, limit: int) -> bytes:
    with path.open("rb") as file:
        file.seek(begin)
        return file.read(limit)


def last_words(lines: Iterable[LogLine], count: int = 20, width: int = 500) -> tuple[str, ...]:
    """What a rank's log says of its end: the lines that explain it, then the last ones; at most `count`, each
    cut to `width` characters.
    """
    texts = [line.text.strip()[:width] for line in lines if line.text.strip()]
    told = telling_lines(texts, count)
    room = count - len(told)
    return (*told, *(text for text in (texts[-room:] if room else ()) if text not in told))


def tells_of_a_death(lines: Iterable[LogLine]) -> bool:
    """Whether vLLM has written which of its processes died: what a fallen rank's remains are spared for."""
    return any(_DEATH in line.text for line in lines)


_DEATH: Final = "died unexpectedly"

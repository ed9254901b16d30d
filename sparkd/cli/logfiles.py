"""Log files of any launcher, of any size, read for what rules look at."""

import mmap
import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from sparkd.diagnosis.catalogue import catalogue
from sparkd.diagnosis.evidence import Evidence, Line
from sparkd.diagnosis.explanation import FAILED
from sparkd.diagnosis.lines import BEGINNINGS, READY, ForeignLog, of_last_life
from sparkd.engine.phrases import telling_lines
from sparkd.errors import NotFound, UsageError

_FIRST_BYTES: Final = 16 << 20
_LAST_BYTES: Final = 112 << 20
"""Of a longer file nothing between is searched, and that is told: at 100 MB a second a gigabyte would take
too long to wait for, and what fell is at the end.
"""
_KEPT: Final = 20_000
"""Lines that hold a needle: so many of the beginning of what is searched, and of its end."""
_TAIL_BYTES: Final = 256 * 1024
"""Where a failure that nobody knows has left its last words."""
_HEAD_BYTES: Final = 256 * 1024
_STAMP_BYTES: Final = 64 * 1024
"""So far above a line without a time one is looked for."""
_LINE_BYTES: Final = 8 * 1024
"""What is longer is no line for people."""


def read_logs(paths: list[Path]) -> tuple[Evidence, tuple[str, ...]]:
    """What the rules want to see of these files, and what was not looked at, in words.

    Raises NotFound for what is no file, UsageError where there is no `grep`, which finds the few lines that
    any rule looks for.
    """
    lines: list[Line] = []
    kernel: list[Line] = []
    unread = []
    for path in paths:
        if not path.is_file():
            raise NotFound(f"{path} is no file")
        of_file, of_kernel = _read(path)
        lines += of_last_life(of_file)
        kernel += of_kernel
        left_out = path.stat().st_size - _FIRST_BYTES - _LAST_BYTES
        if left_out > 0:
            unread.append(f"what {path.name} says between its first and its last part ({left_out >> 20} MiB)")
    return Evidence(tuple(lines), tuple(kernel), logs_alone=True), tuple(unread)


def _read(path: Path) -> tuple[list[Line], list[Line]]:
    size = path.stat().st_size
    if size == 0:
        return [], []
    year = datetime.fromtimestamp(path.stat().st_mtime, UTC).year
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        head = content[:_HEAD_BYTES].decode(errors="replace")
        name = _name_of(path)
        log = ForeignLog(rank=_rank_of(name, head), node=name, year=year)
        last = max(0, size - _LAST_BYTES)
        found = dict(_last_words(content))
        for begin, end in ((0, min(_FIRST_BYTES, last)), (last, size)):
            found.update(_with_needles(content[begin:end], begin))
        lines: list[Line] = []
        kernel: list[Line] = []
        last_end = 0
        for offset, raw in sorted(found.items()):
            if not _STAMPED.match(raw):
                _read_stamp(log, content, max(last_end, offset - _STAMP_BYTES), offset)
            line, of_kernel = log.read(raw.decode(errors="replace"))
            (kernel if of_kernel else lines).append(line)
            last_end = offset + len(raw)
    return lines, kernel


def _read_stamp(log: ForeignLog, content: mmap.mmap, begin: int, end: int) -> None:
    """Have the log read the last line before `end` that tells a time."""
    above = content[begin:end]
    stamped = [match.start() for match in _STAMPED.finditer(above)]
    if stamped:
        raw = above[stamped[-1] :].partition(b"\n")[0]
        log.read(raw[:_LINE_BYTES].decode(errors="replace"))


_STAMPED: Final = re.compile(
    rb"^(?:\([\w.:-]+ [^)\n]*\) )?(?:[A-Z]{4,8} \d\d-\d\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\d[T ]\d\d:|"
    rb"\d{6,} \d{18,20} |[A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d |\[[WEIF]\d{4} )",
    re.MULTILINE,
)


def _with_needles(part: bytes, begin: int) -> Iterator[tuple[int, bytes]]:
    """(offset, line) of those that any rule looks for, and of those that divide a log."""
    grep = shutil.which("grep")
    if grep is None:
        raise UsageError("there is no `grep` on this machine, and logs are searched with it")
    needles = {needle for rule in catalogue().values() for needle in rule.line_needles}
    needles |= {*FAILED, *BEGINNINGS, READY}
    # As bytes (LC_ALL=C, -a): a log may hold anything.
    search = subprocess.run(
        [grep, "-a", "-b", "-F", "-e", "\n".join(sorted(needles))],
        input=part,
        capture_output=True,
        env={"LC_ALL": "C"},
        check=False,  # 1: there is no such line
    )
    found = search.stdout.split(b"\n")
    for one in found if len(found) <= 2 * _KEPT else (*found[:_KEPT], *found[-_KEPT:]):
        offset, _, raw = one.partition(b":")
        if offset:
            yield begin + int(offset), raw[:_LINE_BYTES]


def _last_words(content: mmap.mmap) -> Iterator[tuple[int, bytes]]:
    """(offset, line) of the most telling ones at the end."""
    offset = max(0, len(content) - _TAIL_BYTES)
    found: dict[str, tuple[int, bytes]] = {}
    for raw in content[offset:].split(b"\n"):
        found[raw[:_LINE_BYTES].decode(errors="replace").strip()] = (offset, raw[:_LINE_BYTES])
        offset += len(raw) + 1
    told = telling_lines(list(found))
    yield from (found[text] for text in told if text in found)


def _name_of(path: Path) -> str:
    """The file's, but of a segment of our own (`RANK/log/000…`) the rank's."""
    return path.parent.parent.name if path.name.isdecimal() and path.parent.name == "log" else path.name


def _rank_of(name: str, head: str) -> int | None:
    """By the file's name, else by what its launcher wrote; None where several ranks share the file."""
    if named := re.search(r"(?:rank|node)[-_]?(\d+)|-r(\d+)$", name):
        return int(named[1] or named[2])
    told = {int(rank) for rank in re.findall(r"(?:--node-rank[ =]|\bnode_rank[=:] ?)(\d+)", head)}
    told = told or {int(rank) for rank in re.findall(r"world_size=\d+ rank=(\d+) ", head)}
    return told.pop() if len(told) == 1 else None

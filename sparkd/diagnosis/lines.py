"""Raw lines of logs, without what loggers and launchers put before them, and with the time they told."""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

from sparkd.diagnosis.evidence import Line

_ANSI: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_VLLM: Final = re.compile(
    r"^(?:\((?P<process>[\w.:-]+) (?:pid=\d+|rank=\d+)(?:, ip=(?P<ip>[\d.a-f:]+))?\) )?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<stamp>\d\d-\d\d \d\d:\d\d:\d\d)\S* \[[^\]]*\] ?)?"
    r"(?P<text>.*)$",
    re.DOTALL,
)

_SHIM: Final = re.compile(r"^\d{6,} (?P<ns>\d{18,20}) [12!] ")
_SOURCE: Final = re.compile(r"^(?P<node>[A-Za-z][\w.-]*) +\| ")
_RFC3339: Final = re.compile(
    r"^\[?(?P<day>\d{4}-\d\d-\d\d)[T ](?P<time>\d\d:\d\d:\d\d)(?P<part>[.,]\d+)?"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?\]?[ :] *"
)
_JOURNAL: Final = re.compile(
    r"^(?P<month>[A-Z][a-z]{2}) +(?P<day>\d+) (?P<time>\d\d:\d\d:\d\d) (?P<node>\S+) (?P<program>[^\s:]+): "
)
_TORCH: Final = re.compile(r"^\[?(?:\[rank(?P<rank>\d+)\]:? ?)?\[[WEIF](?P<stamp>\d{4} \d\d:\d\d:\d\d)")
_RANKED: Final = re.compile(r"^(?:\[rank(?P<rank>\d+)\]: ?|\[\d+,(?P<mpi>\d+)\]<std(?:out|err)>: ?)")
_UPTIME: Final = re.compile(r"^(?:<\d+>)?\[ *\d+\.\d{6}\] ")
_KERNEL: Final = re.compile(
    r"^(NVRM: |\[UFW |(Memory cgroup o|O)ut of memory: Killed |oom-kill:|oom_reaper:|.* invoked oom-killer)"
)
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_STAMP_DIGITS: Final = 20
_LINE_S: Final = 1e-6
"""Lines of one second keep their order."""
_WHOLE_SECOND_S: Final = 1.0
_FRACTION_S: Final = 0.1
"""How wrong a stamp without a fraction may be, and one with it: nobody compared these clocks."""

BEGINNINGS: Final = ("vLLM API server version", "headless multiproc executor")
"""What a rank writes once a start: what is above belongs to an earlier life."""
_OF_USERS: Final = ("Received request ", "Generated response ", "prompt: ", "prompt_token_ids")
_HARMLESS: Final = ("DEBUG", "INFO", "WARNING")
_NCCL_INFO: Final = " NCCL INFO "
ASKED_TO_END: Final = "[shutdown] API server: shutdown triggered"
"""vLLM's launcher of rank 0 writes it, at INFO, when SIGTERM or SIGINT reaches it; once its engine is dead it
sends that to itself."""
READY: Final = "Application startup complete."


def read_line(
    raw: str,
    *,
    rank: int | None = None,
    node: str | None = None,
    at: float | None = None,
    error_s: float = 0.0,
) -> Line:
    """A line as vLLM's processes write it: `(Worker_TP0 pid=7) ERROR 11-30 07:50:38 [file.py:1] text`."""
    plain = _ANSI.sub("", raw).rstrip("\r\n").rpartition("\r")[2]
    match = _VLLM.match(plain)
    if match is None:
        return Line(plain, rank, node, at, error_s)
    node = match["ip"] or node
    return Line(match["text"], rank, node, at, error_s, match["process"] or "", match["level"] or "")


def stamped_lines(text: str) -> Iterator[tuple[float, str, str]]:
    """When (seconds, by the node's wall clock), which stream, and what, of lines as a shim stamps them:
    `<mono ns> <wall ns> <1|2|!> text`. What an engine writes may hold any character: only a line feed ends a
    line, and what is no such line is left out. Of a line that was written over and over the last is told.
    """
    for raw in text.split("\n"):
        parts = raw.split(" ", 3)
        wall = parts[1] if len(parts) == 4 else ""
        if wall.isascii() and wall.isdigit() and len(wall) <= _STAMP_DIGITS:
            yield int(wall) / 1e9, parts[2], parts[3].rstrip("\r").rpartition("\r")[2]


def is_of_a_user(text: str) -> bool:
    """Whether a line repeats what a user of the model said: it may say anything, and tells of no fall."""
    return any(words in text for words in _OF_USERS)


def is_harmless(line: Line) -> bool:
    """Whether its own logger says that nothing ended by it: libraries look for others that they can do
    without, and tell of each that is not there.
    """
    return (line.level in _HARMLESS or _NCCL_INFO in line.text) and ASKED_TO_END not in line.text


class ForeignLog:
    """Lines of one log, whoever started what wrote it. `read` them in their order: a line without a time has
    that of the one before it.
    """

    def __init__(self, *, rank: int | None, node: str | None, year: int) -> None:
        """`year`: of stamps that have none."""
        self._rank = rank
        self._node = node
        self._year = year
        self._at: float | None = None
        self._place = 0
        self._error_s = _WHOLE_SECOND_S

    def read(self, raw: str) -> tuple[Line, bool]:
        """The line, and whether it is one of the kernel."""
        rank, node, of_kernel = self._rank, self._node, False
        stamps: list[tuple[float | None, float]] = []
        text = _ANSI.sub("", raw).rstrip("\r\n").rpartition("\r")[2]
        if shim := _SHIM.match(text):
            stamps.append((int(shim["ns"]) / 1e9, 0.0))
            text = text[shim.end() :]
        if source := _SOURCE.match(text):
            node, text = source["node"], text[source.end() :]
        if full := _RFC3339.match(text):
            stamps.append((_rfc3339(full), _FRACTION_S if full["part"] else _WHOLE_SECOND_S))
            text = text[full.end() :]
        elif (journal := _JOURNAL.match(text)) and journal["month"] in _MONTHS:
            month = _MONTHS.index(journal["month"]) + 1
            stamps.append((self._wall(month, int(journal["day"]), journal["time"]), _WHOLE_SECOND_S))
            node, of_kernel = journal["node"], journal["program"] == "kernel"
            text = text[journal.end() :]
        if uptime := _UPTIME.match(text):
            of_kernel, text = True, text[uptime.end() :]
        if torch := _TORCH.match(text):
            day, _, time = torch["stamp"].partition(" ")
            stamps.append((self._wall(int(day[:2]), int(day[2:]), time), _WHOLE_SECOND_S))
        if ranked := _RANKED.match(text):
            rank, text = int(ranked["rank"] or ranked["mpi"]), text[ranked.end() :]
        if (logged := _VLLM.match(text)) and logged["stamp"]:
            day, _, time = logged["stamp"].partition(" ")
            stamps.append((self._wall(int(day[:2]), int(day[3:]), time), _WHOLE_SECOND_S))
        # The outermost is from whoever saw the line last, and often the finer one.
        known = next(((at, error_s) for at, error_s in stamps if at is not None), None)
        if known is not None:
            self._at, self._error_s = known
        self._place += 1
        at = None if self._at is None else self._at + self._place * _LINE_S
        line = read_line(text, rank=rank, node=node, at=at, error_s=self._error_s)
        return line, of_kernel or _KERNEL.match(text) is not None

    def _wall(self, month: int, day: int, time: str) -> float | None:
        hour, minute, second = (int(part) for part in time.split(":"))
        try:
            return datetime(self._year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
        except ValueError:
            return None


def of_last_life(lines: Iterable[Line]) -> list[Line]:
    """Of one log, in its order: nothing of an earlier start, no failure that was over before it served."""
    kept: list[Line] = []
    for line in lines:
        if any(begins in line.text for begins in BEGINNINGS) or READY in line.text:
            kept.clear()
        kept.append(line)
    return kept


def _rfc3339(stamp: re.Match[str]) -> float | None:
    zone = (stamp["zone"] or "Z").replace("Z", "+00:00")
    part = (stamp["part"] or "").replace(",", ".")[:7]
    try:
        return datetime.fromisoformat(f"{stamp['day']}T{stamp['time']}{part}{zone}").timestamp()
    except ValueError:
        return None

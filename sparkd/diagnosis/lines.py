"""A raw line of some log, without what loggers and launchers put before it."""

import re
from typing import Final

from sparkd.diagnosis.evidence import Line

_ANSI: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_VLLM: Final = re.compile(
    r"^(?:\((?P<process>[\w.:-]+) (?:pid=\d+|rank=\d+)[^)]*\) )?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d [\d:.]+ \[[^\]]*\] ?)?(?P<text>.*)$",
    re.DOTALL,
)


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
    return Line(match["text"], rank, node, at, error_s, match["process"] or "", match["level"] or "")

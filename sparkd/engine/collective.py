"""The collective probe as sparkd starts it, and what it tells in its log (`sparkd_mods/fabric_probe.py`)."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import msgspec

from sparkd.records.collective import STAGES, CollectiveReport, Stage, Step

PROBE_MODULE: Final = "sparkd_mods.fabric_probe"
"""What a rank's python is started with instead of vLLM; it lies in the folder of the plug-in."""
LINE_PREFIX: Final = "sparkd-probe "
RUNGS_MOST: Final = 64
"""Of a ladder in a log: what a rank writes is bounded before anybody keeps it."""


class _Line(msgspec.Struct):
    stage: Stage | None = None
    backend: str = ""
    versions: dict[str, str] = {}
    bytes: int = 0
    seconds: float = 0.0
    error: str = ""
    unable: str = ""


def probe_words(
    rank: int, ranks: int, host: str, port: int, *, most_bytes: int, ladder_s: float, within_s: float
) -> tuple[str, ...]:
    """The arguments of one rank of the probe."""
    words = {"rank": rank, "ranks": ranks, "host": host, "port": port, "most": most_bytes}
    words |= {"ladder": format(ladder_s, "g"), "within": format(within_s, "g")}
    return tuple(word for name, value in words.items() for word in (f"--{name}", str(value)))


def read_collective(lines: Iterable[str], before: CollectiveReport) -> CollectiveReport:
    """What is known after these lines of its log. A line that is not understood says nothing."""
    found = before
    for text in lines:
        _, prefix, body = text.partition(LINE_PREFIX)
        if not prefix:
            continue
        try:
            line = msgspec.json.decode(body, type=_Line)
        except msgspec.MsgspecError:
            continue
        found = _with(found, line)
    return found


def _with(report: CollectiveReport, line: _Line) -> CollectiveReport:
    if line.stage is not None and STAGES.index(line.stage) > STAGES.index(report.stage):
        report = replace(report, stage=line.stage)
    if line.seconds > 0 and line.bytes > 0:
        report = replace(report, steps=(*report.steps, Step(line.bytes, line.seconds))[:RUNGS_MOST])
    return replace(
        report,
        backend=line.backend or report.backend,
        versions=line.versions or report.versions,
        error=report.error or line.error,
        unable=report.unable or line.unable,
    )

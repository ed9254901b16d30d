"""Recorded evidence for rules: `tests/cases/ID/{hit,miss}-NAME/`."""

import re
from dataclasses import replace
from pathlib import Path

import msgspec

from sparkd.diagnosis.evidence import Evidence, Line
from sparkd.diagnosis.lines import read_line
from tests.bed.launch_case import evidence_of_launch

FOLDER = Path(__file__).parents[1] / "cases"


def case_folders() -> list[Path]:
    return sorted(path for path in FOLDER.glob("*/*") if path.is_dir())


def evidence_of(case: Path) -> Evidence:
    """`launch.yaml` is a launch (`launch_case.py`).

    Else `evidence.json` is an Evidence; `rankN*.log` are lines of ranks, `kernel*.log` of a node's kernel.

    A line may begin with seconds and a blank (`12.025 NCCL WARN …`): when it was written.
    """
    if (case / "launch.yaml").exists():
        return evidence_of_launch(case / "launch.yaml")
    recorded = case / "evidence.json"
    evidence = msgspec.json.decode(recorded.read_bytes(), type=Evidence) if recorded.exists() else Evidence()
    lines, kernel = list(evidence.lines), list(evidence.kernel)
    for path in sorted(case.glob("*.log")):
        rank = re.match(r"rank(\d+)", path.name)
        into = lines if rank else kernel
        node = None if rank else path.stem.partition("-")[2] or None
        into += [_line(raw, int(rank[1]) if rank else None, node) for raw in path.read_text().splitlines()]
    return replace(evidence, lines=tuple(lines), kernel=tuple(kernel))


def _line(raw: str, rank: int | None, node: str | None) -> Line:
    timed = re.match(r"(\d+\.\d+) (.*)", raw)
    return read_line(timed[2] if timed else raw, rank=rank, node=node, at=float(timed[1]) if timed else None)

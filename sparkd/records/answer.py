"""What the coordinator answers to a command, and to a question for log lines."""

from dataclasses import dataclass
from typing import Literal

from sparkd.records.status import DeploymentStatus


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """Answer to `up`, `down` and `restart`: recorded on `recorded_on` of `nodes` nodes."""

    deployment: DeploymentStatus
    outcome: Literal["created", "running", "started", "restarting", "stopping", "stopped"]
    recorded_on: int = 0
    nodes: int = 0


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a rank as the shim stamped it; `at` is the node's wall clock."""

    rank: int
    at: float
    stream: Literal["out", "err", "shim"]
    text: str


@dataclass(frozen=True, slots=True)
class Problem:
    """RFC 9457: how every error of the REST API looks. `code` is a code of `sparkd/errors.py`."""

    status: int
    title: str = ""
    detail: str = ""
    type: str = "about:blank"
    code: str = ""
    differences: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

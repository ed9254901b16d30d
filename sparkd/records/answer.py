"""What the coordinator answers to a command, and to a question for log lines."""

from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class Membership:
    """Who belongs to a coordinator, and what a node needs to meet it."""

    holder: str
    agent_urls: tuple[str, ...]
    """Where agents dial to, the best address first."""
    authority: str
    """The certificate that both sides trust, PEM."""
    nodes: dict[str, str] = field(default_factory=dict)
    """Enrolled: id -> name."""
    revoked: tuple[str, ...] = ()
    """Ids of nodes that were removed; none is used again."""


@dataclass(frozen=True, slots=True)
class NodeEnrolled:
    id: str
    name: str
    certificate: str
    """Of the node, PEM."""


@dataclass(frozen=True, slots=True)
class ProcessStacks:
    pid: int
    title: str
    lines: tuple[str, ...] = ()
    """As `faulthandler` writes them; empty of a process that did not answer in time."""
    silent: str = ""
    """Of one that did not: its state, and where it waits in the kernel."""


@dataclass(frozen=True, slots=True)
class RankStacks:
    """Where the threads of a rank's processes are; `error` where that could not be asked."""

    rank: int
    node: str
    processes: tuple[ProcessStacks, ...] = ()
    error: str | None = None

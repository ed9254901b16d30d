"""The desired state of one node, and how the two sides of the agent protocol order it."""

from dataclasses import dataclass
from typing import Any, Literal

from sparkd.records.rank import RankSpec

Desired = Literal["up", "down"]
TaskKind = Literal[
    "port",
    "facts",
    "files",
    "image",
    "evict",
    "probe",
    "log",
    "canary",
    "stacks",
    "blackbox",
    "hash",
]


@dataclass(frozen=True, slots=True, order=True)
class Revision:
    """Order of documents: a later term wins over any revision of an earlier one."""

    term: int
    revision: int

    def __str__(self) -> str:
        return f"{self.term}.{self.revision}"


@dataclass(frozen=True, slots=True)
class Task:
    """One question to a node. None carries a command; at most once per id, never begun after the deadline."""

    id: str
    kind: TaskKind
    args: dict[str, Any]
    deadline_s: float
    """From receipt of the document that first listed it."""


@dataclass(frozen=True, slots=True)
class Follow:
    """A rank whose log lines are wanted live, from a byte offset into its whole stream."""

    rank: str
    offset: int


@dataclass(frozen=True, slots=True)
class DeploymentSerial:
    """What every agent remembers of every deployment. `removed` marks a tombstone."""

    name: str
    serial: int
    desired: Desired
    removed: bool = False


@dataclass(frozen=True, slots=True)
class Document:
    """Always whole. Listed and absent: start. Existing and not listed: stop. Held: neither.

    `hold` is True (everything) or the deployments that must be left as they are.
    """

    term: int
    holder: str
    instance: str
    revision: int
    hold: bool | tuple[str, ...] = False
    ranks: tuple[RankSpec, ...] = ()
    tasks: tuple[Task, ...] = ()
    follow: tuple[Follow, ...] = ()
    deployments: tuple[DeploymentSerial, ...] = ()

    @property
    def order(self) -> Revision:
        return Revision(self.term, self.revision)

    def holds(self, deployment: str) -> bool:
        return self.hold if isinstance(self.hold, bool) else deployment in self.hold

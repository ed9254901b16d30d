"""What the fleet machine computes with: the coordinator's own place in history, nodes, gangs, documents."""

from dataclasses import dataclass, field

from sparkd.fleet.nodes import Node
from sparkd.gang.collective import Collective
from sparkd.gang.state import Gang, GangCommand, PendingTask, Planner
from sparkd.records.document import Document, Follow
from sparkd.records.report import TaskResult


@dataclass(frozen=True, slots=True)
class Fleet:
    """Everything the coordinator knows. `term` is durable before anything carries it."""

    holder: str
    term: int
    instance: str
    started: float
    enrolled: frozenset[str] = frozenset()
    """Node ids; empty when the list is lost, then every node that presents itself is heard."""
    nodes: dict[str, Node] = field(default_factory=dict)
    gangs: dict[str, Gang] = field(default_factory=dict)
    documents: dict[str, Document] = field(default_factory=dict)
    follows: dict[str, tuple[Follow, ...]] = field(default_factory=dict)
    errands: tuple[PendingTask, ...] = ()
    """Questions to nodes that no gang asked: logs, facts."""
    lives: frozenset[tuple[int, str]] = frozenset()
    """(term, instance) of every life that the database holds, this one included."""
    old: bool = False
    """The database knows less than some agent: see `amnesia`."""
    held: frozenset[str] = frozenset()
    """Deployments that must be left as they are until more nodes have spoken."""
    known_again: frozenset[str] = frozenset()
    """Deployments that were taken from the agents in this life."""
    asked: frozenset[str] = frozenset()
    """Deployments that a person asked something of in this life."""
    drained: frozenset[str] = frozenset()
    """Nodes that get no new rank; durable."""
    holding: bool = True
    silence_from: float = 0.0
    """Silence counts from here at the earliest: the end of the hold, or of a stall of this very process."""
    ticked: float = 0.0
    planner: Planner | None = None
    probes: int = 0
    """The highest number of a collective probe that was given in this life."""
    collectives: dict[int, Collective] = field(default_factory=dict)
    """Probes that people asked for, by number; those before launches are the gangs' own."""


@dataclass(frozen=True, slots=True)
class Told:
    """A gang's command, with whose it is."""

    deployment: str
    generation: int
    command: GangCommand


@dataclass(frozen=True, slots=True)
class NodeSaid:
    """A change of a node, worth an event."""

    node: str
    reason: str
    from_: str | None = None
    to: str | None = None
    kind: str = "node"


@dataclass(frozen=True, slots=True)
class ErrandDone:
    node: str
    result: TaskResult


@dataclass(frozen=True, slots=True)
class Superseded:
    """The process must end: another coordinator is, or shall be, obeyed."""

    reason: str


FleetCommand = Told | NodeSaid | ErrandDone | Superseded
Commands = tuple[FleetCommand, ...]

"""A node of a gang, as the choice of its fabric sees it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sparkd.records.fabric import NodeFabric
from sparkd.records.report import NodeFacts


@dataclass(frozen=True, slots=True)
class Member:
    id: str
    name: str
    management: str
    """The address by which people and the coordinator know it."""
    fabric: NodeFabric = field(default_factory=NodeFabric)
    pinned_address: str | None = None
    """From the node's own configuration: where ranks meet, instead of what would be chosen."""
    pinned_interface: str | None = None
    looked: bool = True
    """Its agent looks at all: one of a local set does not, it meets on loopback."""


def members_of(nodes: Sequence[NodeFacts]) -> tuple[Member, ...]:
    return tuple(
        Member(
            node.id,
            node.name,
            node.address,
            node.fabric or NodeFabric(),
            node.fabric_address if node.fabric_address != node.address else None,
            node.fabric_interface,
            node.fabric is not None,
        )
        for node in nodes
    )

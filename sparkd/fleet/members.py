"""Who belongs to the fleet: enrolling and removing nodes while it runs. Pure.

The list of enrolled nodes lies outside the database (`enrol/roster.py`) and is written first.
"""

from dataclasses import replace

from sparkd.errors import Conflict, NotFound
from sparkd.fleet.nodes import Node
from sparkd.fleet.state import Commands, Fleet, NodeSaid
from sparkd.gang.machine import ENDED


def enrol(fleet: Fleet, node_id: str, name: str) -> tuple[Fleet, Commands]:
    """A node that may say hello from now on. Idempotent."""
    known = fleet.nodes.get(node_id)
    if known is not None and known.name == name and node_id in fleet.enrolled:
        return fleet, ()
    node = replace(known, name=name) if known else Node(node_id, name)
    nodes = {**fleet.nodes, node_id: node}
    said = NodeSaid(node_id, f"enrolled as {name}")
    return replace(fleet, nodes=nodes, enrolled=fleet.enrolled | {node_id}), (said,)


def node_called(fleet: Fleet, name: str) -> Node:
    """By its name or id. Raises NotFound."""
    node = next((one for one in fleet.nodes.values() if name in (one.name, one.id)), None)
    if node is None:
        known = ", ".join(sorted(one.name for one in fleet.nodes.values())) or "none"
        raise NotFound(f"no node is called {name!r} (known: {known})")
    return node


def removable(fleet: Fleet, name: str) -> Node:
    """The node of that name or id, if nothing of ours hangs on it. Raises NotFound, or Conflict: what does.

    A node that is away may be removed: what runs there is out of reach, and its agent is refused when it is
    back.
    """
    node = node_called(fleet, name)
    for gang in fleet.gangs.values():
        if node.id in gang.record.nodes and gang.record.phase not in ENDED:
            word = f"`sparkd down {gang.record.name}` first"
            raise Conflict(f"{gang.record.name} has a rank on {node.name} ({gang.record.phase}): {word}")
    if node.in_contact and (left := node.existing()):
        raise Conflict(f"something is left on {node.name}: {', '.join(report.name for report in left)}")
    return node


def remove(fleet: Fleet, node_id: str) -> tuple[Fleet, Commands]:
    """The node is no member any more. What `removable` refuses must not come here."""
    gone = fleet.nodes.get(node_id)
    if gone is None:
        return fleet, ()
    fleet = replace(
        fleet,
        nodes={key: node for key, node in fleet.nodes.items() if key != node_id},
        documents={key: document for key, document in fleet.documents.items() if key != node_id},
        follows={key: follows for key, follows in fleet.follows.items() if key != node_id},
        errands=tuple(errand for errand in fleet.errands if errand.node != node_id),
        enrolled=fleet.enrolled - {node_id},
        drained=fleet.drained - {node_id},
    )
    return fleet, (NodeSaid("", f"node {gone.name} was removed"),)

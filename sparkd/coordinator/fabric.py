"""The fabric of nodes, for people: what a gang on them would use, from what they last showed."""

from collections.abc import Sequence
from dataclasses import replace

from sparkd.errors import NotFound
from sparkd.fabric.choice import choose, variables
from sparkd.fabric.findings import findings
from sparkd.fabric.member import members_of
from sparkd.fabric.pins import own_address
from sparkd.fleet.nodes import Node
from sparkd.fleet.state import Fleet
from sparkd.records.fabric import FabricSeat, FabricView


def fabric_view(fleet: Fleet, names: Sequence[str] = ()) -> FabricView:
    """Of the nodes with these names or ids, or of all that said hello. Raises NotFound."""
    nodes = nodes_called(fleet, names)
    facts = [node.facts for node in nodes if node.facts is not None]
    if not facts:
        return FabricView("unseen", None, "no node has said hello yet", ())
    choice = choose(members_of(facts))
    seats = tuple(
        FabricSeat(
            seat.member.id,
            seat.member.name,
            seat.address,
            seat.interface,
            tuple(hca.device for hca in seat.hcas),
            {name: value for name, value, _ in variables(choice, seat)},
            fact.fabric,
        )
        for seat, fact in zip(choice.seats, facts, strict=True)
    )
    names_of = {seat.node: seat.name for seat in seats}
    told = tuple(
        replace(verdict, node=names_of.get(verdict.node or "", verdict.node))
        for verdict in (*findings(choice), *own_address(choice))
    )
    return FabricView(choice.topology, choice.network, choice.reason, seats, told)


def nodes_called(fleet: Fleet, names: Sequence[str]) -> list[Node]:
    """By name, all of them if none is named. Raises NotFound."""
    known = sorted((node for node in fleet.nodes.values() if node.facts), key=lambda node: node.name)
    found = []
    for name in names or [node.id for node in known]:
        node = next((one for one in known if name in (one.name, one.id)), None)
        if node is None:
            told = ", ".join(one.name for one in known) or "none"
            raise NotFound(f"no node {name} has said hello; these have: {told}")
        found.append(node)
    return found

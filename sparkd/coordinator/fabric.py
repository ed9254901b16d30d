"""The fabric of nodes, for people: what a gang on them would use, from what they last showed."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from sparkd.coordinator.reconciler import Reconciler
from sparkd.errors import NotFound
from sparkd.fabric.choice import choose, variables
from sparkd.fabric.findings import findings
from sparkd.fabric.member import members_of
from sparkd.fabric.pins import own_address
from sparkd.fleet.nodes import Node
from sparkd.fleet.state import Fleet
from sparkd.gang.state import PendingTask
from sparkd.records.defaults import DEFAULTS
from sparkd.records.document import Task
from sparkd.records.fabric import FabricSeat, FabricView, NodeFabric
from sparkd.records.facts import MachineFacts


async def fabric_now(reconciler: Reconciler, names: Sequence[str] = ()) -> FabricView:
    """As `fabric_view`, of what the nodes find when they are asked; of a silent one what it showed last."""
    nodes = nodes_called(reconciler.fleet, names)
    answers = await asyncio.gather(*(_ask(reconciler, node) for node in nodes))
    found = dict(zip((node.id for node in nodes), answers, strict=True))
    return fabric_view(reconciler.fleet, [node.id for node in nodes], found)


async def _ask(reconciler: Reconciler, node: Node) -> NodeFabric | None:
    now = reconciler.now()
    task = Task(f"fabric.{node.id}.{now.wall:.6f}", "facts", {}, DEFAULTS.facts_s)
    try:
        result = await reconciler.errand(PendingTask(node.id, task, now.mono + DEFAULTS.facts_s))
        return msgspec.convert(result.result, MachineFacts).fabric if result.ok else None
    except (TimeoutError, msgspec.ValidationError):
        return None


def fabric_view(
    fleet: Fleet, names: Sequence[str] = (), found: Mapping[str, NodeFabric | None] | None = None
) -> FabricView:
    """Of the nodes with these names or ids, or of all that said hello. Raises NotFound.

    `found`, by node id, is newer than the hello.
    """
    nodes = nodes_called(fleet, names)
    facts = [
        replace(node.facts, fabric=(found or {}).get(node.id) or node.facts.fabric)
        for node in nodes
        if node.facts is not None
    ]
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

"""The oracle: invariants of design §2 that hold at every moment of a simulated cluster."""

from typing import TYPE_CHECKING

from sparkd.fleet.state import Fleet
from sparkd.gang.record import GangRecord
from sparkd.gang.state import WriteIncident

if TYPE_CHECKING:
    from tests.sim.world import World

BUDGET = 3
"""Of every deployment that is played."""


def check(world: "World") -> None:
    """Invariants of design §2 that hold at every moment."""
    for node in world.nodes.values():
        alive = node.exists()
        if len(alive) > 1:
            world.violated(7, f"{node.id} runs {[r.spec.name for r in alive]}")
        if len(set(node.started_names)) != len(node.started_names):
            twice = sorted({n for n in node.started_names if node.started_names.count(n) > 1})
            world.violated(1, f"{node.id} started twice: {twice}")
        document = node.core.document if node.core is not None else None
        if document is not None and document.holder != node.holder:
            world.violated(5, f"{node.id} obeys {document.holder}, and was enrolled by {node.holder}")
    fleet = world.coordinator.fleet
    if fleet is None:
        return
    for name, gang in fleet.gangs.items():
        record = gang.record
        if record.phase == "ready" and not fleet.holding and name not in fleet.held:
            _check_ready(world, name, record)


def _check_ready(world: "World", name: str, record: GangRecord) -> None:
    """A rank of an old generation never serves after a newer one is ready; one on a node that was away
    ends when the node has had its document, one on a node that obeys a second coordinator once it is back.
    """
    fleet = world.coordinator.fleet
    assert fleet is not None
    for node_id, node in world.nodes.items():
        known = fleet.nodes[node_id]
        if not known.settled or node.core is None:
            continue
        if not known.in_contact and node.core.instance != fleet.instance:
            continue
        for rank in node.exists():
            old = rank.spec.deployment == name and rank.spec.generation < record.generation
            if old and rank.state == "running":
                text = f"{rank.spec.name} on {node_id} lives while generation {record.generation} is ready"
                world.violated(1, text)


def check_fall(world: "World", old: Fleet, name: str, incident: WriteIncident) -> None:
    """Invariant 6: no healthy gang is stopped because a control connection was lost."""
    if incident.fall.cause not in ("NODE_LOST", "ENGINE_WEDGED") or name not in old.gangs:
        return
    record = old.gangs[name].record
    ranks = [r for r in world.living(name) if r.spec.generation == record.generation]
    healthy = len(ranks) == len(record.specs) and all(r.state == "running" and not r.frozen for r in ranks)
    if record.phase == "ready" and healthy:
        world.violated(6, f"{name} was healthy and is ended: {incident.fall.reason}")


def check_order(world: "World", old: Fleet, new: Fleet) -> None:
    """What a run of an agent said last stands: a request that was overtaken puts nothing back."""
    for node_id, node in new.nodes.items():
        before = old.nodes.get(node_id)
        if before is not None and before.run == node.run and node.seq < before.seq:
            world.violated(1, f"{node_id} is put back from seq {before.seq} to {node.seq}")


def check_commit(world: "World", old: Fleet, new: Fleet) -> None:
    """Ranks of two generations never run at once on nodes in contact when the newer one is committed."""
    for name, gang in new.gangs.items():
        before = old.gangs.get(name)
        if before is None or gang.launched_at != world.now or gang.launched_at == before.launched_at:
            continue
        if gang.record.budget.spent > BUDGET:
            world.violated(4, f"{name} is started again after {gang.record.budget.spent} falls")
        for node_id, node in world.nodes.items():
            left = [r.spec.name for r in node.exists() if r.spec.deployment == name]
            if left and new.nodes[node_id].in_contact:
                text = f"{left} on {node_id} at the commit of generation {gang.record.generation}"
                world.violated(1, text)

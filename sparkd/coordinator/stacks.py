"""Where the threads of ranks are, asked of their nodes now."""

import asyncio

from sparkd.coordinator.reconciler import Reconciler
from sparkd.errors import NotFound
from sparkd.gang.stacks import read
from sparkd.records.answer import RankStacks
from sparkd.records.defaults import DEFAULTS
from sparkd.records.rank import RankSpec


async def ask_stacks(reconciler: Reconciler, deployment: str, rank: int | None) -> list[RankStacks]:
    """Of all ranks, or of one. Raises NotFound when there is none to ask."""
    record = reconciler.fleet.gangs[deployment].record
    chosen = [spec for spec in record.specs if rank in (None, spec.rank)]
    if not chosen:
        raise NotFound(f"{deployment} has no rank {'to ask' if rank is None else rank}")
    return list(await asyncio.gather(*(_ask(reconciler, spec, record.nodes[spec.rank]) for spec in chosen)))


async def _ask(reconciler: Reconciler, spec: RankSpec, node_id: str) -> RankStacks:
    node = reconciler.fleet.nodes.get(node_id)
    name = node.name if node else node_id
    result = await reconciler.ask(node_id, "stacks", {"rank": spec.name}, DEFAULTS.stacks_ask_s)
    return read(spec.rank, name, result)

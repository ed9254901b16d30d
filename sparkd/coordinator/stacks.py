"""Where the threads of ranks are: asked of their nodes now, and what they answer, read."""

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from sparkd.errors import NotFound
from sparkd.records.answer import ProcessStacks, RankStacks
from sparkd.records.defaults import DEFAULTS
from sparkd.records.rank import RankSpec
from sparkd.records.report import TaskResult

if TYPE_CHECKING:
    from sparkd.coordinator.reconciler import Reconciler


async def ask_stacks(reconciler: "Reconciler", deployment: str, rank: int | None) -> list[RankStacks]:
    """Of all ranks, or of one. Raises NotFound when there is none to ask."""
    record = reconciler.fleet.gangs[deployment].record
    chosen = [spec for spec in record.specs if rank in (None, spec.rank)]
    if not chosen:
        raise NotFound(f"{deployment} has no rank {'to ask' if rank is None else rank}")
    return list(await asyncio.gather(*(_ask(reconciler, spec, record.nodes[spec.rank]) for spec in chosen)))


async def _ask(reconciler: "Reconciler", spec: RankSpec, node_id: str) -> RankStacks:
    node = reconciler.fleet.nodes.get(node_id)
    name = node.name if node else node_id
    result = await reconciler.ask(node_id, "stacks", {"rank": spec.name}, DEFAULTS.stacks_ask_s)
    return read_stacks(spec.rank, name, result)


def read_stacks(rank: int, node: str, result: TaskResult | None) -> RankStacks:
    """A node's answer, or why there is none."""
    if result is None:
        return RankStacks(rank, node, error="the node did not answer in time")
    if not result.ok:
        return RankStacks(rank, node, error=result.error or "the node does not say why")
    try:
        told = msgspec.convert(result.result.get("processes"), tuple[ProcessStacks, ...])
    except msgspec.ValidationError as error:
        return RankStacks(rank, node, error=f"its answer is not understood: {error}")
    return RankStacks(rank, node, told)


def shortened(told: RankStacks, most: int) -> RankStacks:
    """At most so many lines of each process, and how many are left out."""

    def cut(one: ProcessStacks) -> ProcessStacks:
        left = len(one.lines) - most
        return one if left <= 0 else replace(one, lines=(*one.lines[:most], f"… and {left} lines more"))

    return replace(told, processes=tuple(cut(one) for one in told.processes))

"""Where a gang stands that is frozen or does not get on: asked before its end. Rules of the gang machine."""

from typing import Final

import msgspec

from sparkd.gang.state import WriteIncident
from sparkd.gang.turn import Turn
from sparkd.records.answer import ProcessStacks, RankStacks
from sparkd.records.report import TaskResult

STANDS_STILL: Final = frozenset({"ENGINE_WEDGED", "BOOT_STALLED"})
"""Ended for what they do not do; whoever fell has no stack any more."""


def ask(turn: Turn) -> None:
    """Leave the ranks for a moment (design §3.6); their agents have them write where they are."""
    for rank, spec in enumerate(turn.record.specs):
        report = turn.report(rank)
        node = turn.world.nodes.get(turn.record.nodes[rank])
        if node is not None and node.in_contact and report is not None and report.state == "running":
            args = {"rank": spec.name, "within_s": turn.limits.stacks_told_s}
            turn.ask("stacks", node.id, args, turn.limits.stacks_before_end_s)
    if turn.gang.tasks:
        turn.change(stacks_until=turn.now.mono + turn.limits.stacks_before_end_s)


def awaited(turn: Turn) -> bool:
    """Whether the ranks are still left alone. When all have told, or the time is over, it is written down."""
    until = turn.gang.stacks_until
    if until is None:
        return False
    if turn.now.mono < until and any(task.result is None for task in turn.gang.tasks):
        turn.wait("the ranks to tell where they stand", "all of them are ended", deadline=until)
        return True
    ranks = {spec.name: rank for rank, spec in enumerate(turn.record.specs)}
    told = []
    for task in turn.gang.tasks:
        found = read(ranks[task.task.args["rank"]], turn.name_of(task.node), task.result)
        told.append(shortened(found, turn.limits.stacks_lines))
    turn.change(stacks_until=None, tasks=())
    if turn.record.fall is not None:
        turn.commands.append(WriteIncident(turn.record.fall, turn.record.verdicts, tuple(told)))
    return False


def read(rank: int, node: str, result: TaskResult | None) -> RankStacks:
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
    """With at most so many lines of each process; of how many, where some are left out."""

    def cut(one: ProcessStacks) -> ProcessStacks:
        left = len(one.lines) - most
        if left <= 0:
            return one
        lines = (*one.lines[:most], f"… and {left} lines more")
        return ProcessStacks(one.pid, one.title, lines, one.silent)

    return RankStacks(told.rank, told.node, tuple(cut(one) for one in told.processes), told.error)

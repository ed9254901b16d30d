"""Where a gang stands that is frozen or does not get on: asked before its end. Rules of the gang machine."""

from typing import Final

from sparkd.gang.state import Stood, WriteIncident
from sparkd.gang.turn import Turn

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
    told = tuple(
        Stood(ranks[task.task.args["rank"]], turn.name_of(task.node), task.result) for task in turn.gang.tasks
    )
    turn.change(stacks_until=None, tasks=())
    if turn.record.fall is not None:
        turn.commands.append(WriteIncident(turn.record.fall, turn.record.verdicts, told))
    return False

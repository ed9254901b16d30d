"""Ending what runs, and what nodes say while it ends. Rules of the gang machine."""

from typing import Literal

from sparkd.gang.state import Gang
from sparkd.gang.turn import Turn
from sparkd.records.names import parse_rank_name
from sparkd.records.report import Exit


def begin_recovering(turn: Turn, reason: str, delay_s: float) -> None:
    """Kill all ranks; the next generation follows when they are proved gone and `delay_s` is over."""
    turn.enter("recovering", reason)
    turn.change(
        gone=frozenset(),
        unproven=frozenset(),
        stop_since=turn.now.mono,
        retry_at=turn.now.mono + delay_s,
        memory_since=None,
        memory_back_since=None,
        evicted=False,
        conditions=(),
    )


def begin_stopping(
    turn: Turn,
    reason: str,
    *,
    ending: Literal["stopped", "failed", "pending"],
    desired: Literal["up", "down"] | None = None,
    serial: int | None = None,
) -> None:
    """End the ranks: rank 0 gently if it serves, everything else at once."""
    gentle = turn.phase == "ready" and ending == "stopped"
    turn.enter(
        "stopping",
        reason,
        ending=ending,
        desired=desired or turn.record.desired,
        serial=serial if serial is not None else turn.record.serial,
    )
    turn.change(
        gone=frozenset(),
        unproven=frozenset(),
        stop_since=turn.now.mono,
        head_gone=not gentle,
        conditions=(),
    )


def followers_wait(gang: Gang) -> bool:
    """Whether followers still have to live, because rank 0 is ending its last requests."""
    return not gang.head_gone and gang.record.ending == "stopped" and len(gang.record.specs) > 0


def note_report(turn: Turn, node_id: str) -> None:
    """A node that has made a document without the ranks true, and has none of them left, has proved it."""
    if turn.phase not in ("recovering", "stopping") or turn.gang.stacks_until is not None:
        return
    node = turn.world.nodes[node_id]
    broken_off = any(report.name in turn.gang.probe_left for report in node.existing())
    if node.settled and not node.existing(turn.record.name) and not broken_off:
        turn.change(gone=turn.gang.gone | {node_id}, unproven=turn.gang.unproven - {node_id})


def note_exit(turn: Turn, exit_: Exit) -> None:
    """Tell each process end once, whenever and however often it is reported, in whichever life of ours."""
    name = parse_rank_name(exit_.rank)
    told = (exit_.rank, exit_.pid)
    if name is None or name.deployment != turn.record.name or told in turn.record.told_exits:
        return
    turn.write(told_exits=(*turn.record.told_exits, told)[-turn.limits.exits_remembered :])
    turn.say("exit", f"{exit_.process} (pid {exit_.pid}) {describe_exit(exit_)}", rank=name.rank)


def describe_exit(exit_: Exit) -> str:
    if exit_.signal is not None:
        return f"was ended by signal {exit_.signal} ({exit_.how})"
    if exit_.code is not None:
        return f"exited with {exit_.code} ({exit_.how})"
    return "ended, nobody knows how"

"""The memory-returned gate: a new generation starts when the old one's memory is back (cases 7 and 8). Pure.

The GB10 has one pool of memory. A driver that gives it back late, or never, makes each retry start with less.
"""

from dataclasses import dataclass

from sparkd.fleet.nodes import Node
from sparkd.gang.ending import begin_stopping
from sparkd.gang.turn import Turn
from sparkd.records.defaults import GIB
from sparkd.records.rank import MemoryNeed
from sparkd.records.verdict import Severity, Verdict


@dataclass(frozen=True, slots=True)
class Returned:
    """Whether a node's memory is back. `short` says in words what is missing."""

    back: bool
    enough: bool
    """The plan's need and reserve are covered all the same."""
    short: str = ""


def returned(node: Node, need: MemoryNeed) -> Returned:
    """Measure one node against its baseline; without one (adoption, first boot) against the plan's need.

    A node that cannot read its memory is not held back by it.
    """
    if node.sample is None or node.sample.memory is None:
        return Returned(back=True, enough=True)
    available = node.sample.memory.available
    target = need.need_bytes if node.baseline_bytes is None else node.baseline_bytes - need.margin_bytes
    enough = available >= need.need_bytes
    if available >= target:
        return Returned(back=True, enough=enough)
    what = "the plan needs" if node.baseline_bytes is None else "before the rank it had, less the margin,"
    short = f"{available / GIB:.1f} GiB available on {node.name}, {what} {target / GIB:.1f} GiB"
    return Returned(back=False, enough=enough, short=short)


def memory_is_back(turn: Turn) -> bool:
    """The gate of `memory.py`, over all nodes in contact and over time."""
    if turn.gang.memory_since is None:
        turn.change(memory_since=turn.now.mono)
    since = turn.gang.memory_since or turn.now.mono
    short: list[tuple[str, Returned]] = []
    for spec, node_id in zip(turn.record.specs, turn.record.nodes, strict=True):
        node = turn.world.nodes.get(node_id)
        if node is not None and node.in_contact:
            judged = returned(node, spec.memory)
            if not judged.back:
                short.append((node_id, judged))
    need = turn.record.specs[0].memory if turn.record.specs else MemoryNeed()
    if not short:
        back_since = turn.gang.memory_back_since
        if back_since is None:
            turn.change(memory_back_since=turn.now.mono)
            back_since = turn.now.mono
        if turn.now.mono - back_since >= need.hold_s:
            return True
        turn.wait(
            "the memory to stay returned", "the next generation starts", deadline=back_since + need.hold_s
        )
        return False
    turn.change(memory_back_since=None)
    deadline = since + need.timeout_s
    node_id, first = short[0]
    if turn.now.mono < deadline:
        if not turn.gang.evicted and turn.now.mono - since >= need.timeout_s / 2:
            turn.change(evicted=True)
            for other, _ in short:
                turn.ask("evict", other, {}, turn.limits.preflight_s)
        then = "it starts with a warning if that is enough all the same, else the node needs a reboot"
        turn.wait(f"memory to be returned: {first.short}", then, node=node_id, deadline=deadline)
        return False
    return _trapped(turn, short)


def _trapped(turn: Turn, short: list[tuple[str, Returned]]) -> bool:
    """The time is over. What the plan needs may be there all the same; else only a reboot helps."""
    verdicts = tuple(
        Verdict(
            "TRAPPED_UMA",
            Severity.WARN if judged.enough else Severity.BLOCK,
            "memory was not returned after the last generation",
            evidence=judged.short,
            cause="the driver has not given back what the old rank held",
            remedy="reboot that node" if not judged.enough else "reboot that node when it suits you",
            node=turn.name_of(node_id),
        )
        for node_id, judged in short
    )
    if all(judged.enough for _, judged in short):
        turn.say("memory", f"starting with less memory than before: {short[0][1].short}", node=short[0][0])
        turn.change(carried=verdicts)
        return True
    names = ", ".join(turn.name_of(node_id) for node_id, judged in short if not judged.enough)
    turn.write(verdicts=(*turn.record.verdicts, *verdicts))
    begin_stopping(turn, f"reboot needed on {names}: {short[0][1].short}", ending="failed")
    return False

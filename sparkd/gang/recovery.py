"""Until nothing is left: proof of every node, back-off, stopping. Rules of the gang machine."""

from sparkd.gang import stacks
from sparkd.gang.collective import stuck_on
from sparkd.gang.ending import begin_stopping
from sparkd.gang.falls import refine
from sparkd.gang.memory import memory_is_back
from sparkd.gang.turn import Turn
from sparkd.records.report import RankReport
from sparkd.records.verdict import Severity, Verdict


def _open_proofs(turn: Turn) -> tuple[str, ...]:
    """Members, and other nodes in contact with something left, that have not proved anything yet."""
    members = set(turn.record.nodes) if turn.record.specs or turn.gang.probe_left else set()
    others = {n.id for n in turn.world.nodes.values() if n.in_contact and n.existing(turn.record.name)}
    away = {n for n in members if not _reachable(turn, n)}
    fresh = away - turn.gang.unproven - turn.gang.gone
    if fresh:
        turn.change(unproven=turn.gang.unproven | fresh)
        for node_id in sorted(fresh):
            turn.say(
                "unproven", "not in contact: its rank is fenced by the next rendezvous port", node=node_id
            )
    return tuple(sorted((members | others) - turn.gang.gone - turn.gang.unproven))


def _reachable(turn: Turn, node_id: str) -> bool:
    node = turn.world.nodes.get(node_id)
    return node is not None and node.in_contact


def _wait_for_proof(turn: Turn, open_: tuple[str, ...], then: str) -> None:
    node = open_[0]
    since = turn.gang.stop_since if turn.gang.stop_since is not None else turn.gang.phase_since
    what = f"{turn.name_of(node)} to prove that nothing is left of its rank"
    turn.wait(what, then, node=node, deadline=since + turn.limits.kill_proof_s + turn.limits.down_grace_s)


def _unkillable(turn: Turn) -> dict[str, RankReport]:
    """By node id: of the gang's ranks, wherever they are; and of the probe's, on the nodes of the gang."""
    found = {}
    for node in turn.world.nodes.values():
        left = [one for one in node.existing(turn.record.name) if one.state == "unkillable"]
        if node.id in turn.record.nodes and (probe := stuck_on(node)) is not None:
            left.append(probe)
        if node.in_contact and left:
            found[node.id] = left[0]
    return found


def _name_unkillable(turn: Turn) -> str:
    """Add the verdict, if it is due and not there yet; gives what it adds to the reason."""
    stuck = _unkillable(turn)
    if not stuck or any(verdict.id == "UNKILLABLE" for verdict in turn.record.verdicts):
        return ""
    what = "; ".join(f"{r.name}: {', '.join(r.remains) or 'still there'}" for r in stuck.values())
    verdict = Verdict(
        "UNKILLABLE",
        Severity.BLOCK,
        "a process does not end on SIGKILL",
        evidence=what,
        cause="it is stuck in the kernel, most often in the GPU driver",
        remedy="reboot that node",
    )
    turn.write(verdicts=(*turn.record.verdicts, verdict))
    return f"reboot needed: {what}"


def recovering(turn: Turn) -> None:
    if stacks.awaited(turn):
        return
    refine(turn)
    if turn.phase != "recovering":
        return
    if _unkillable(turn):
        begin_stopping(turn, _name_unkillable(turn) or turn.record.reason, ending="failed")
        return
    open_ = _open_proofs(turn)
    if open_:
        _wait_for_proof(turn, open_, "the node must be rebooted")
        return
    retry_at = turn.gang.retry_at
    if retry_at is not None and turn.now.mono < retry_at:
        blocked = turn.gang.blocked_since is not None
        what = "what blocks the next launch to pass" if blocked else "the back-off to end"
        then = "the nodes are asked again" if blocked else "the next generation starts"
        turn.wait(what, then, deadline=retry_at)
        return
    if not memory_is_back(turn):
        return
    turn.enter("pending", f"nothing is left of generation {turn.record.generation}")


def stopping(turn: Turn) -> None:
    if stacks.awaited(turn):
        return
    refine(turn)
    if turn.phase != "stopping":
        return
    since = turn.gang.stop_since if turn.gang.stop_since is not None else turn.gang.phase_since
    if not turn.gang.head_gone:
        _judge_head(turn, since)
    open_ = _open_proofs(turn)
    limit = since + turn.limits.kill_proof_s + turn.limits.down_grace_s
    # The proof time of what is unkillable is over already: more waiting would prove nothing.
    waited_for = tuple(node for node in open_ if node not in _unkillable(turn))
    if waited_for and turn.now.mono < limit:
        _wait_for_proof(turn, waited_for, "it counts as ended, and what is left is named")
        return
    left = tuple(sorted(turn.name_of(n) for n in {*open_, *turn.gang.unproven}))
    ending = turn.record.ending
    reason = {
        "failed": turn.record.reason,
        "stopped": "asked to stop",
        "pending": "asked for again, and nothing is left of the last generation",
    }[ending]
    named = _name_unkillable(turn)
    if named:
        reason = f"{reason}; {named}"
    if left:
        reason = f"{reason}; may be left on {', '.join(left)}"
    turn.enter(ending, reason, left_on=left)
    if ending == "pending":
        turn.write(nodes=(), specs=(), fall=None, verdicts=())
    turn.change(unproven=frozenset())


def _judge_head(turn: Turn, since: float) -> None:
    if not turn.record.specs:  # it never ran, and a probe is being ended
        turn.change(head_gone=True)
        return
    head = turn.report(0)
    node = turn.world.nodes.get(turn.record.nodes[0])
    over = turn.now.mono - since >= turn.limits.down_grace_s + turn.limits.beat_s
    away = node is None or not node.in_contact
    if over or away or head is None or head.state == "gone":
        turn.change(head_gone=True)

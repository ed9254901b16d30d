"""The way down and back: falls, proof that nothing is left, back-off, stopping. Gang machine rules."""

from typing import Literal

from sparkd.gang.budget import Allowance, Policy, RetryClass, allowance
from sparkd.gang.causes import Cause, classify
from sparkd.gang.memory import Returned, returned
from sparkd.gang.state import Gang, WriteIncident
from sparkd.gang.turn import Turn
from sparkd.records.fall import Fall
from sparkd.records.names import parse_rank_name
from sparkd.records.rank import MemoryNeed
from sparkd.records.report import Exit, RankReport
from sparkd.records.verdict import Severity, Verdict

_SAME_FALL_S = 5.0
"""Deaths of two ranks closer than this belong to one fall (design §8)."""

_OWN_CAUSES = frozenset({"CANARY_FAILED", "ENGINE_WEDGED", "BOOT_STALLED", "START_REFUSED", "NODE_LOST"})
"""Judged by the gang, not read from a process's end: no later exit explains them better."""


# A rank is down, so the gang is down. -------------------------------------------------------------------


def fell(turn: Turn) -> bool:
    """End the gang if any rank of the present generation has fallen or was refused."""
    candidates = _fallen(turn)
    if not candidates:
        return False
    fall = _first(candidates)
    _begin(turn, fall)
    return True


def begin_fall(turn: Turn, rank: int, reason: str, cause: str | None = None) -> None:
    """End the gang for a reason that no process end shows: frozen, no progress, a wrong canary."""
    _begin(
        turn,
        Fall(
            generation=turn.record.generation,
            rank=rank,
            node=turn.name_of(turn.record.nodes[rank]),
            reason=reason,
            wall=turn.now.wall,
            cause=cause,
        ),
    )


def _fallen(turn: Turn) -> list[Fall]:
    found = []
    for rank, spec in enumerate(turn.record.specs):
        node_id = turn.record.nodes[rank]
        node = turn.world.nodes.get(node_id)
        if node is None:
            continue
        report = node.reports.get(spec.name)
        if report is not None and _is_down(report, by_itself=turn.phase in ("recovering", "stopping")):
            found.append(_fall_of(turn, rank, report, node.clock_offset_s))
        elif report is None and spec.name in node.refusals:
            code, reason = node.refusals[spec.name]
            found.append(
                Fall(
                    turn.record.generation,
                    rank,
                    node.name,
                    f"the node refused to start it ({code}): {reason}",
                    turn.now.wall,
                    cause="ENGINE_MISSING" if code == "engine" else "START_REFUSED",
                )
            )
    return found


def _is_down(report: RankReport, *, by_itself: bool) -> bool:
    """While the gang runs, any end is a fall; while it is being ended, only one that nobody ordered."""
    if by_itself:
        return report.fell is not None
    return report.state in ("fallen", "gone", "unkillable", "stopping")


def _fall_of(turn: Turn, rank: int, report: RankReport, clock_offset_s: float) -> Fall:
    exit_ = report.exit
    cause = _cause_of(report.lines, exit_.signal if exit_ else None)
    return Fall(
        generation=turn.record.generation,
        rank=rank,
        node=turn.name_of(turn.record.nodes[rank]),
        reason=report.fell or report.ended or "it ended without being asked to",
        wall=(exit_.at + clock_offset_s) if exit_ else turn.now.wall,
        code=exit_.code if exit_ else None,
        signal=exit_.signal if exit_ else None,
        how=exit_.how if exit_ else "unknown",
        lines=report.lines,
        cause=cause.id if cause else None,
        remedy=cause.remedy if cause else "",
    )


def _cause_of(lines: tuple[str, ...], signal: int | None) -> Cause | None:
    """What a rank's last lines say of its end. A process that refuses something exits: an end by a signal has
    another cause, whatever was logged before, and is worth a retry.
    """
    cause = classify(lines)
    return None if cause is not None and cause.retry == "never" and signal is not None else cause


def _first(candidates: list[Fall]) -> Fall:
    """Kind first, time second (design §8): a signal or a known cause explains an exit that follows it."""
    earliest = min(fall.wall for fall in candidates)
    near = [fall for fall in candidates if fall.wall - earliest <= _SAME_FALL_S]
    return min(near, key=lambda f: (f.cause is None and f.signal is None, f.code in (0, None), f.wall))


def _begin(turn: Turn, fall: Fall) -> None:
    record = turn.record
    retry = _retry_of(fall)
    turn.write(budget=record.budget.charge(turn.now.wall, retry), falls=record.falls + 1, fall=fall)
    judged = _judge(turn, retry)
    reason = f"rank {fall.rank} on {fall.node}: {fall.reason}"
    turn.say("fall", reason, node=record.nodes[fall.rank], rank=fall.rank)
    verdict = _verdict(fall)
    turn.commands.append(WriteIncident(fall, (verdict,)))
    turn.write(verdicts=(verdict,))
    if judged.allowed:
        begin_recovering(turn, f"{_headline(fall)}; {judged.reason}", judged.delay_s)
    else:
        begin_stopping(turn, f"{_headline(fall)}; gave up: {judged.reason}", ending="failed")


def _headline(fall: Fall) -> str:
    return f"rank {fall.rank} on {fall.node} fell: {fall.reason}"


def _retry_of(fall: Fall) -> RetryClass:
    if fall.cause == "ENGINE_MISSING":
        return "never"
    cause = _cause_of(fall.lines, fall.signal)
    return cause.retry if cause else "normal"


def _judge(turn: Turn, retry: RetryClass) -> Allowance:
    record = turn.record
    key = f"{record.name}-g{record.generation}"
    return allowance(record.budget, policy_of(turn), retry, key, turn.limits)


def _verdict(fall: Fall) -> Verdict:
    cause = _cause_of(fall.lines, fall.signal)
    return Verdict(
        fall.cause or "RANK_FELL",
        Severity.BLOCK,
        f"rank {fall.rank} on {fall.node}: {fall.reason}",
        evidence="\n".join(fall.lines),
        cause=cause.title if cause else "",
        remedy=fall.remedy,
        node=fall.node,
        rank=fall.rank,
    )


def policy_of(turn: Turn) -> Policy:
    section = turn.record.intent.profile.get("restart", {})
    return Policy(
        budget=int(section.get("budget", turn.limits.restart_budget)),
        backoff_s=float(section.get("backoff_s", turn.limits.restart_backoff_s)),
        backoff_max_s=float(section.get("backoff_max_s", turn.limits.restart_backoff_max_s)),
    )


def refine(turn: Turn) -> None:
    """A report that came later may know more: the exit status, the last lines, or that another fell first."""
    told = turn.record.fall
    if told is None or told.generation != turn.record.generation or told.cause in _OWN_CAUSES:
        return
    known = [fall for fall in _fallen(turn) if fall.signal is not None or fall.code is not None or fall.lines]
    if not known:
        return
    best = _first(known)
    if best.rank != told.rank and _first([best, told]) is told:
        return
    if (best.rank, best.how, best.reason, best.lines) == (told.rank, told.how, told.reason, told.lines):
        return
    verdict = _verdict(best)
    reason = turn.record.reason.replace(_headline(told), _headline(best))
    turn.write(fall=best, verdicts=(verdict,), reason=reason)
    turn.commands.append(WriteIncident(best, (verdict,)))
    if best.rank != told.rank:
        reason = f"rank {best.rank} on {best.node} fell first: {best.reason}"
        turn.say("fall", reason, node=turn.record.nodes[best.rank], rank=best.rank)
    _judge_again(turn, told, best)


def _judge_again(turn: Turn, told: Fall, best: Fall) -> None:
    """A fall is told before the rank's last lines are read, and only they may show that no retry cures it."""
    before, retry = _retry_of(told), _retry_of(best)
    if retry == before:
        return
    turn.write(budget=turn.record.budget.reclassify(before, retry))
    judged = _judge(turn, retry)
    if turn.phase == "recovering" and not judged.allowed:
        begin_stopping(turn, f"{_headline(best)}; gave up: {judged.reason}", ending="failed")


# Ending what runs. --------------------------------------------------------------------------------------


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
    if turn.phase not in ("recovering", "stopping"):
        return
    node = turn.world.nodes[node_id]
    if node.settled and not node.existing(turn.record.name):
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


def _open_proofs(turn: Turn) -> tuple[str, ...]:
    """Members, and other nodes in contact with something left, that have not proved anything yet."""
    members = set(turn.record.nodes) if turn.record.specs else set()
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


def _unkillable(turn: Turn) -> list[RankReport]:
    return [
        report
        for node in turn.world.nodes.values()
        if node.in_contact
        for report in node.existing(turn.record.name)
        if report.state == "unkillable"
    ]


def recovering(turn: Turn) -> None:
    refine(turn)
    if turn.phase != "recovering":
        return
    stuck = _unkillable(turn)
    if stuck:
        what = "; ".join(f"{r.name}: {', '.join(r.remains) or 'still there'}" for r in stuck)
        verdict = Verdict(
            "UNKILLABLE",
            Severity.BLOCK,
            "a process does not end on SIGKILL",
            evidence=what,
            cause="it is stuck in the kernel, most often in the GPU driver",
            remedy="reboot that node",
        )
        turn.write(verdicts=(*turn.record.verdicts, verdict))
        begin_stopping(turn, f"reboot needed: {what}", ending="failed")
        return
    open_ = _open_proofs(turn)
    if open_:
        _wait_for_proof(turn, open_, "the node must be rebooted")
        return
    retry_at = turn.gang.retry_at
    if retry_at is not None and turn.now.mono < retry_at:
        turn.wait("the back-off to end", "the next generation starts", deadline=retry_at)
        return
    if not _memory_is_back(turn):
        return
    turn.enter("pending", f"nothing is left of generation {turn.record.generation}")


def _memory_is_back(turn: Turn) -> bool:
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


def stopping(turn: Turn) -> None:
    refine(turn)
    since = turn.gang.stop_since if turn.gang.stop_since is not None else turn.gang.phase_since
    if not turn.gang.head_gone:
        _judge_head(turn, since)
    open_ = _open_proofs(turn)
    limit = since + turn.limits.kill_proof_s + turn.limits.down_grace_s
    if open_ and turn.now.mono < limit:
        _wait_for_proof(turn, open_, "it counts as ended, and what is left is named")
        return
    left = tuple(sorted(turn.name_of(n) for n in {*open_, *turn.gang.unproven}))
    ending = turn.record.ending
    reason = {
        "failed": turn.record.reason,
        "stopped": "asked to stop",
        "pending": "asked for again, and nothing is left of the last generation",
    }[ending]
    if left:
        reason = f"{reason}; may be left on {', '.join(left)}"
    turn.enter(ending, reason, left_on=left)
    if ending == "pending":
        turn.write(nodes=(), specs=(), fall=None, verdicts=())
    turn.change(unproven=frozenset())


def _judge_head(turn: Turn, since: float) -> None:
    head = turn.report(0)
    node = turn.world.nodes.get(turn.record.nodes[0])
    over = turn.now.mono - since >= turn.limits.down_grace_s + turn.limits.beat_s
    away = node is None or not node.in_contact
    if over or away or head is None or head.state == "gone":
        turn.change(head_gone=True)

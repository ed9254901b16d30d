"""A rank is down, so the gang is down: which one fell first, why, and whether to try again."""

from dataclasses import replace

from sparkd.diagnosis.catalogue import catalogue, cause_of_rank
from sparkd.diagnosis.choice import COLLECTIVE, DEATH, EXIT, QUIET, Moment, choose
from sparkd.diagnosis.evidence import End
from sparkd.diagnosis.rule import RetryClass, Rule
from sparkd.fleet.nodes import Node
from sparkd.gang import stacks
from sparkd.gang.budget import Allowance, allowance
from sparkd.gang.ending import begin_recovering, begin_stopping
from sparkd.gang.state import WriteIncident
from sparkd.gang.turn import Turn
from sparkd.records.fall import Beside, Fall
from sparkd.records.report import RankReport
from sparkd.records.verdict import Severity, Verdict


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
    _begin(turn, _judged(turn, rank, turn.name_of(turn.record.nodes[rank]), cause, reason))


def _fallen(turn: Turn) -> list[Fall]:
    found = []
    for rank, spec in enumerate(turn.record.specs):
        node_id = turn.record.nodes[rank]
        node = turn.world.nodes.get(node_id)
        if node is None:
            continue
        report = node.reports.get(spec.name)
        ending = turn.phase in ("recovering", "stopping")
        if report is not None and report.condemned is not None and not ending:
            # Whether its agent has ended it already or leaves that to us.
            found.append(_judged(turn, rank, node.name, report.condemned.cause, report.condemned.reason))
        elif report is not None and _is_down(report, by_itself=ending):
            found.append(_fall_of(turn, rank, report, node))
        elif report is not None and report.mods_missing and not ending:
            # It runs, and must not: what it would serve is not what the profile means.
            found.append(_judged(turn, rank, node.name, "MOD_MISSING", report.mods_missing))
        elif report is not None and spec.rdma and report.transport == "sockets" and not ending:
            given = spec.env.get("NCCL_IB_HCA")
            why = f"it was given {given}" if given else "its profile requires RDMA"
            reason = f"NCCL went over sockets although {why}"
            found.append(_judged(turn, rank, node.name, "TRANSPORT_SOCKETS", reason))
        elif report is None and spec.name in node.refusals:
            refused = node.refusals[spec.name]
            cause = refused.cause or ("ENGINE_MISSING" if refused.code == "engine" else "START_REFUSED")
            reason = f"the node refused to start it ({refused.code}): {refused.reason}"
            found.append(_judged(turn, rank, node.name, cause, reason))
    return found


def _judged(turn: Turn, rank: int, node: str, cause: str | None, reason: str) -> Fall:
    """For a reason that no process end shows. The cause's rule has a remedy."""
    known = _rule(cause)
    remedy = known.remedy if known else ""
    return Fall(
        turn.record.generation, rank, node, reason, turn.now.wall, cause=cause, remedy=remedy, judged=True
    )


def _is_down(report: RankReport, *, by_itself: bool) -> bool:
    """While the gang runs, any end is a fall; while it is being ended, only one that nobody ordered."""
    if by_itself:
        return report.fell is not None
    return report.state in ("fallen", "gone", "unkillable", "stopping")


def _fall_of(turn: Turn, rank: int, report: RankReport, node: Node) -> Fall:
    exit_ = report.exit
    cause = _cause_of(turn, report, node)
    return Fall(
        generation=turn.record.generation,
        rank=rank,
        node=turn.name_of(turn.record.nodes[rank]),
        reason=report.fell or report.ended or "it ended without being asked to",
        wall=(exit_.at + node.clock_offset_s) if exit_ else turn.now.wall,
        code=exit_.code if exit_ else None,
        signal=exit_.signal if exit_ else None,
        how=exit_.how if exit_ else "unknown",
        lines=report.lines,
        cause=cause.id if cause else None,
        remedy=cause.remedy if cause else "",
        # Before a clock was compared its error is infinite; more than the window makes no difference.
        wall_error_s=min(node.clock_error_s, turn.limits.cause_window_s) if exit_ else 0.0,
    )


def _cause_of(turn: Turn, report: RankReport, node: Node) -> Rule | None:
    """What a rank's last lines and its exit say of its end. Who refuses an argument or misses a file exits
    with an error before it was ever ready.
    """
    refused = report.exit is not None and bool(report.exit.code) and turn.gang.ready_since is None
    return cause_of_rank(
        report.lines, _end_of(turn, report), refused=refused, verdicts=_of_the_kernel(report, node)
    )


def _of_the_kernel(report: RankReport, node: Node) -> tuple[Verdict, ...]:
    """A SIGKILL is the kernel's only where its log names the very process."""
    if report.exit is None or node.sample is None:
        return ()
    named = f"process {report.exit.pid} "
    return tuple(one for one in node.sample.verdicts if one.id == "KERNEL_OOM" and named in one.evidence)


def _end_of(turn: Turn, report: RankReport) -> End | None:
    told = report.exit
    if told is None:
        return None
    ready = turn.gang.ready_since is not None
    return End(told.process, pid=told.pid, code=told.code, signal=told.signal, was_ready=ready)


def _first(candidates: list[Fall]) -> Fall:
    """Kind first, time second (design §8)."""
    best, *others = choose(candidates, _moment)
    return replace(best, beside=tuple(Beside(fall.rank, fall.node, fall.reason) for fall in others))


def _moment(fall: Fall) -> Moment:
    """An end that explains itself, by a signal or by what it said last, explains an exit beside it."""
    rule = _rule(fall.cause)
    if fall.signal is not None or (rule is not None and rule.kind != "collective"):
        kind = DEATH
    elif rule is not None:
        kind = COLLECTIVE
    else:
        kind = EXIT if fall.code else QUIET
    return Moment(kind, fall.wall, fall.wall_error_s)


def _rule(cause: str | None) -> Rule | None:
    return catalogue().get(cause) if cause else None


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
    if fall.cause in stacks.STANDS_STILL:
        stacks.ask(turn)


def _headline(fall: Fall) -> str:
    others = "".join(
        f"; in the same moment rank {one.rank} on {one.node}: {one.reason}" for one in fall.beside
    )
    return f"rank {fall.rank} on {fall.node} fell: {fall.reason}{others}"


def _retry_of(fall: Fall) -> RetryClass:
    rule = _rule(fall.cause)
    return rule.retry if rule else "normal"


def _judge(turn: Turn, retry: RetryClass) -> Allowance:
    record = turn.record
    key = f"{record.name}-g{record.generation}"
    return allowance(record.budget, turn.policy, retry, key, turn.limits)


def _verdict(fall: Fall) -> Verdict:
    rule = _rule(fall.cause)
    return Verdict(
        fall.cause or "UNKNOWN",
        Severity.BLOCK,
        f"rank {fall.rank} on {fall.node}: {fall.reason}",
        evidence="\n".join(fall.lines),
        cause=rule.title if rule else "",
        remedy=fall.remedy,
        node=fall.node,
        rank=fall.rank,
    )


def refine(turn: Turn) -> None:
    """A report that came later may know more: the exit status, the last lines, or that another fell first."""
    told = turn.record.fall
    if told is None or told.generation != turn.record.generation or told.judged:
        return
    known = [fall for fall in _fallen(turn) if fall.signal is not None or fall.code is not None or fall.lines]
    if not known:
        return
    best = _first(known)
    if best.rank != told.rank and _first([best, told]).rank == told.rank:
        return
    if best.rank == told.rank and _explains(told) and not _explains(best):
        return  # the line that told why has been pushed out of the sample by newer ones
    if _facts_of(best) == _facts_of(told):
        return
    verdict = _verdict(best)
    reason = turn.record.reason.replace(_headline(told), _headline(best))
    turn.write(fall=best, verdicts=(verdict,), reason=reason)
    turn.commands.append(WriteIncident(best, (verdict,)))
    if best.rank != told.rank:
        reason = f"rank {best.rank} on {best.node} fell first: {best.reason}"
        turn.say("fall", reason, node=turn.record.nodes[best.rank], rank=best.rank)
    _judge_again(turn, told, best)


def _explains(fall: Fall) -> bool:
    """Whether somebody has told why it was ended, and not only how."""
    rule = _rule(fall.cause)
    return rule is not None and rule.kind == "end"


def _facts_of(fall: Fall) -> tuple[object, ...]:
    return fall.rank, fall.how, fall.reason, fall.lines, fall.cause


def _judge_again(turn: Turn, told: Fall, best: Fall) -> None:
    """A fall is told before the rank's last lines are read, and only they may show that no retry cures it; or
    that what nothing cures only followed from what was first.
    """
    before, retry = _retry_of(told), _retry_of(best)
    if retry == before:
        return
    turn.write(budget=turn.record.budget.reclassify(before, retry))
    judged = _judge(turn, retry)
    gave_up = turn.phase == "stopping" and turn.record.ending == "failed"
    if gave_up and before == "never" and judged.allowed:
        begin_recovering(turn, f"{_headline(best)}; {judged.reason}", judged.delay_s)
    elif turn.phase == "recovering" and not judged.allowed:
        begin_stopping(turn, f"{_headline(best)}; gave up: {judged.reason}", ending="failed")

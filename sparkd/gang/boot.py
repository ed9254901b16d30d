"""The way up: launching, loading, warming. Rules of the gang machine."""

from sparkd.gang import falls, silence
from sparkd.gang.collective import stuck_on, stuck_words
from sparkd.gang.silence import in_contact, lost_reason
from sparkd.gang.turn import Turn
from sparkd.records.report import RankReport
from sparkd.records.status import Phase

_STAGE: dict[str, int] = {"launching": 0, "rendezvous": 1, "loading": 2, "warming": 3, "serving": 4}


def booting(turn: Turn) -> None:
    """Follow the ranks up; a fall, a wrong canary or a phase without progress ends the attempt."""
    if falls.fell(turn) or _stands_behind_a_probe(turn):
        return
    served = turn.gang.ready_since is not None
    lost = silence.lost_while_serving(turn) if served else silence.lost_while_booting(turn)
    if lost is not None:
        falls.begin_fall(turn, lost, lost_reason(turn, lost), cause="NODE_LOST")
        return
    if served and not silence.proof_is_overdue(turn):
        turn.enter("ready", "there is proof again that every rank computes")
        return
    reports = [turn.report(rank) for rank in range(len(turn.record.specs))]
    _note_progress(turn, reports)
    phase = _phase_of(reports)
    if phase != turn.phase and _rank_of(phase) > _rank_of(turn.phase):
        turn.enter(phase, _why(phase, reports))
    head = reports[0]
    if head is not None and head.probe is not None:
        if head.probe.failed:
            falls.begin_fall(turn, 0, f"not ready: {head.probe.failed}", cause="CANARY_FAILED")
            return
        running = all(report is not None and report.state == "running" for report in reports)
        if head.probe.warmed and running and not served:
            _become_ready(turn)
            return
    _judge_deadline(turn, reports)


def _stands_behind_a_probe(turn: Turn) -> bool:
    """A node starts no rank before the probe's is gone, and this one does not go."""
    for rank, node_id in enumerate(turn.record.nodes):
        node = turn.world.nodes.get(node_id)
        stuck = stuck_on(node) if node is not None and node.in_contact else None
        if stuck is not None and turn.report(rank) is None:
            falls.begin_fall(turn, rank, f"its node runs {stuck_words(stuck)}", cause="UNKILLABLE")
            return True
    return False


def _phase_of(reports: list[RankReport | None]) -> Phase:
    """The gang's phase is that of its slowest rank, but an API that answers means warming."""
    head = reports[0]
    if head is not None and head.probe is not None and head.probe.api_up:
        return "warming"
    stage = min((_STAGE[r.phase] if r else 0) for r in reports)
    furthest = max((_STAGE[r.phase] if r else 0) for r in reports)
    if stage >= _STAGE["warming"]:
        return "warming"
    return "loading" if furthest >= _STAGE["loading"] else "launching"


def _rank_of(phase: str) -> int:
    return ("launching", "loading", "warming", "ready").index(phase)


def _why(phase: Phase, reports: list[RankReport | None]) -> str:
    details = [f"rank {i}: {r.detail}" for i, r in enumerate(reports) if r is not None and r.detail]
    return "; ".join(details) or f"the ranks are {phase}"


def _note_progress(turn: Turn, reports: list[RankReport | None]) -> None:
    """Progress on any rank counts for the whole gang (case 41)."""
    newest = max(
        (_heard_at(turn, rank) - r.progress_age_s for rank, r in enumerate(reports) if r is not None),
        default=0.0,
    )
    if newest > turn.gang.progress_at:
        turn.change(progress_at=newest)


def _heard_at(turn: Turn, rank: int) -> float:
    """Ages in a report count from its receipt: an old report must not look like fresh progress."""
    node = turn.world.nodes.get(turn.record.nodes[rank])
    return node.heard if node is not None and node.heard is not None else 0.0


def _judge_deadline(turn: Turn, reports: list[RankReport | None]) -> None:
    limits = turn.limits
    allowance = {
        "launching": limits.launching_s,
        "loading": limits.loading_s,
        "warming": limits.warming_s,
    }[turn.phase]
    deadline = turn.gang.progress_at + allowance
    started = turn.gang.launched_at if turn.gang.launched_at is not None else turn.gang.phase_since
    cap = started + turn.record.specs[0].boot_max_s
    rank, what = _slowest(reports)
    away = next((r for r in range(len(reports)) if not in_contact(turn, r)), None)
    if away is not None:
        # Its progress cannot be seen: whether it is lost is decided by its silence, not by this deadline.
        name = turn.name_of(turn.record.nodes[away])
        turn.wait(f"word from node {name}", "it goes on as it is", rank=away, node=turn.record.nodes[away])
        return
    if turn.now.mono >= min(deadline, cap):
        why = (
            f"no progress for {allowance:.0f} s"
            if deadline <= cap
            else f"not ready within {turn.record.specs[0].boot_max_s:.0f} s (boot.max_s)"
        )
        falls.begin_fall(turn, rank, f"{why} while {turn.phase}: {what}", cause="BOOT_STALLED")
        return
    then = "the gang is ended and started anew if the budget allows"
    turn.wait(what, then, rank=rank, node=turn.record.nodes[rank], deadline=min(deadline, cap))


def _slowest(reports: list[RankReport | None]) -> tuple[int, str]:
    for rank, report in enumerate(reports):
        if report is None:
            return rank, f"rank {rank} to be started by its node"
    head = reports[0]
    if head is not None and head.probe is not None and head.probe.api_up:
        return 0, head.probe.detail or "the canary's answer"
    stages = [(_STAGE[report.phase], rank) for rank, report in enumerate(reports) if report is not None]
    rank = min(stages)[1]
    report = reports[rank]
    return rank, f"rank {rank} ({report.detail})" if report and report.detail else f"rank {rank} to load"


def _become_ready(turn: Turn) -> None:
    started = turn.gang.launched_at if turn.gang.launched_at is not None else turn.gang.phase_since
    boot_s = turn.now.mono - started
    turn.enter("ready", f"the canary was answered {boot_s:.0f} s after the launch", boot_s=boot_s)
    turn.change(ready_since=turn.now.mono)

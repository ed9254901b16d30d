"""Processes stopped on followers' nodes, which rank 0's agent does not see. Rules of the gang machine.

    state T ──5 s── a proof is asked for ──10 s── none since it was stopped: frozen

A token needs every rank, so one that came after the stop clears the process of all suspicion: it may be a
helper that nothing waits for. Rank 0's agent judges what is stopped on its own node (`sparkd.detect.wedge`).
"""

from sparkd.gang import silence
from sparkd.gang.turn import Turn


def stood_still(turn: Turn) -> tuple[int, str] | None:
    """The rank, and why the gang is frozen. Asks for a proof before."""
    if silence.head_is_away(turn):
        return None
    for rank in range(1, len(turn.record.specs)):
        for words, since in suspects(turn, rank):
            age = turn.now.mono - since
            if not _is_heard(turn, rank) or age < turn.limits.stopped_state_s / 2:
                continue
            if silence.unproved(turn, since) and age >= turn.limits.stopped_state_s:
                return rank, f"rank {rank}'s {words}, and no token has come since, though one was asked for"
    return None


def suspects(turn: Turn, rank: int) -> list[tuple[str, float]]:
    """Its stopped processes that no token clears, oldest first: in words, and since when.

    Each is judged by itself: beside a helper that stands still for ever another one may be stopped.
    """
    report, node = turn.report(rank), turn.world.nodes.get(turn.record.nodes[rank])
    if report is None or report.stopped_s is None or node is None or node.heard is None:
        return []
    # While we stood still ourselves nobody was heard: what was asked before that is asked anew.
    counted_from = max(turn.world.silence_counts_from, turn.gang.restored_at)
    ages = report.stopped_each_s or (report.stopped_s,)
    stops = [
        (words, max(node.heard - age, counted_from)) for words, age in zip(report.stopped, ages, strict=False)
    ]
    return [(words, since) for words, since in stops if not _computed_after(turn, since)]


def _is_heard(turn: Turn, rank: int) -> bool:
    return turn.world.nodes[turn.record.nodes[rank]].in_contact


def _computed_after(turn: Turn, since: float) -> bool:
    """A token, or a counter that moved: that one is told of when it is seen, a look later than it moved."""
    head, node = turn.report(0), turn.world.nodes[turn.record.nodes[0]]
    if head is None or head.probe is None or node.heard is None:
        return False
    token, moved = head.probe.proof_age_s, head.probe.moved_age_s
    late = turn.limits.pulse_retry_s + turn.limits.rank_scan_s
    return (token is not None and node.heard - token > since) or (
        moved is not None and node.heard - moved > since + late
    )

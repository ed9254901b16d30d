"""Ready: what keeps a gang so, and what ends that. Rules of the gang machine."""

from sparkd.gang import falls, silence
from sparkd.gang.budget import refill_after_s
from sparkd.gang.silence import in_contact, lost_reason
from sparkd.gang.stillness import stood_still, suspects
from sparkd.gang.turn import Turn


def ready(turn: Turn) -> None:
    """Serve. The pulse decides about health; a lost control connection is only a condition."""
    if falls.fell(turn):
        return
    head = turn.report(0)
    if head is not None and head.probe is not None and head.probe.wedged and in_contact(turn, 0):
        rank, why = _frozen_by(turn, head.probe.wedged)
        falls.begin_fall(turn, rank, f"the engine is frozen: {why}", cause="ENGINE_WEDGED")
        return
    still = stood_still(turn)
    if still is not None:
        falls.begin_fall(turn, still[0], f"the engine is frozen: {still[1]}", cause="ENGINE_WEDGED")
        return
    lost = silence.lost_while_serving(turn)
    if lost is not None:
        falls.begin_fall(turn, lost, lost_reason(turn, lost), cause="NODE_LOST")
        return
    if silence.head_is_away(turn) and silence.proof_is_overdue(turn):
        # Nobody can be asked, so nobody can say that it is ready; nor that it is not, so it is left alone.
        turn.enter("warming", "no proof within the bound, and rank 0's agent cannot be asked")
        return
    members = range(len(turn.record.nodes))
    away = [turn.name_of(turn.record.nodes[rank]) for rank in members if not in_contact(turn, rank)]
    conditions = ("unsupervised",) if away else ()
    if conditions != turn.gang.conditions:
        turn.change(conditions=conditions)
        reason = f"no contact with {', '.join(away)}; it serves on" if away else "all nodes are in contact"
        turn.say("condition", reason)
    since = turn.gang.ready_since if turn.gang.ready_since is not None else turn.gang.phase_since
    if turn.record.budget.spent and turn.now.mono - since >= refill_after_s(turn.record.boot_s, turn.limits):
        turn.write(budget=turn.record.budget.refill())
        turn.say("budget", "ready for long enough: the restart budget is full again")


def note_pulse(turn: Turn, outcome: str) -> None:
    """A pulse of our own that was delivered and brought nothing is as good as rank 0's agent's word."""
    if outcome == "answered":
        turn.change(endpoint_proof=turn.now.mono)
    elif outcome == "unanswered" and turn.phase == "ready" and silence.head_is_away(turn):
        falls.begin_fall(turn, 0, "the endpoint takes a pulse and does not answer", cause="ENGINE_WEDGED")


def _frozen_by(turn: Turn, wedged: str) -> tuple[int, str]:
    """Rank 0's agent judges the engine; who stands still may be known on another node."""
    for rank in range(1, len(turn.record.specs)):
        for words, _ in suspects(turn, rank):
            return rank, f"rank {rank}'s {words}; {wedged}"
    return 0, wedged

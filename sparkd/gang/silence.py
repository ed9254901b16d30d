"""Nodes that are silent: are they lost, or is only the control connection? Rules of the gang machine.

A node is lost when it is silent on both paths. The second path is the gang itself: a token, or a counter
that moved, needs every rank, so it proves that the silent node computes (design §2, invariant 6). While a
gang boots there is no such proof; then silence for a lease counts as loss.

    last word ──2 s── suspect: a pulse is asked for ──4 s── silent ──5.5 s── no proof since: lost
"""

from sparkd.fleet.nodes import Node
from sparkd.gang.state import PulseEndpoint
from sparkd.gang.turn import Turn


def lost_while_booting(turn: Turn) -> int | None:
    """The rank whose node has been silent for longer than a lease."""
    for rank, node in _members(turn):
        if node is not None and _quiet(turn, node) >= turn.limits.lease_s:
            return rank
    return None


def lost_while_serving(turn: Turn) -> int | None:
    """The rank whose node is silent on both paths. Asks for a proof as soon as a node is suspect."""
    away = [(rank, node) for rank, node in _members(turn) if node is None or node.state != "alive"]
    if not away:
        return None
    proved_at = last_proof(turn)
    for rank, node in away:
        heard = _heard(turn, node)
        if proved_at is not None and proved_at > heard + turn.limits.beat_s * 1.5:
            # It computed after it should have spoken. While rank 0's agent is away, the pulse is our task.
            if rank == 0 and turn.now.mono - proved_at >= turn.limits.pulse_silence_s:
                _ask_for_proof(turn, heard)
            continue
        _ask_for_proof(turn, heard)
        if turn.now.mono - heard >= turn.limits.node_silent_s + turn.limits.second_path_s:
            return rank
    return None


def last_proof(turn: Turn) -> float | None:
    """When a step was last completed that needed every rank: as rank 0's agent saw it, or as we saw it."""
    found = [turn.gang.endpoint_proof] if turn.gang.endpoint_proof is not None else []
    head_node = turn.world.nodes.get(turn.record.nodes[0])
    head = turn.report(0)
    if head_node is not None and head_node.heard is not None and head is not None and head.probe is not None:
        ages = (head.probe.proof_age_s, head.probe.moved_age_s)
        found += [head_node.heard - age for age in ages if age is not None]
    return max(found, default=None)


def overdue(turn: Turn) -> bool:
    """Rank 0's agent is away, and our own pulse to the endpoint has found nothing for the whole bound."""
    head_node = turn.world.nodes.get(turn.record.nodes[0])
    if head_node is not None and head_node.in_contact:
        return False
    probe = turn.record.specs[0].probe
    bound = (
        probe.pulse_silence_s + probe.pulse_timeout_s
        if probe is not None
        else turn.limits.pulse_silence_s + turn.limits.pulse_timeout_s
    )
    proved_at = last_proof(turn)
    since = max(turn.gang.phase_since, proved_at if proved_at is not None else 0.0)
    return turn.now.mono - since > bound


def _members(turn: Turn) -> list[tuple[int, Node | None]]:
    return [(rank, turn.world.nodes.get(node_id)) for rank, node_id in enumerate(turn.record.nodes)]


def _heard(turn: Turn, node: Node | None) -> float:
    """The last receipt; a node that has not spoken in this life counts from the end of the hold."""
    counted_from = max(turn.world.silence_counts_from, turn.gang.restored_at)
    if node is None or node.heard is None:
        return counted_from
    return max(node.heard, counted_from) if not node.greeted else node.heard


def _quiet(turn: Turn, node: Node) -> float:
    return turn.now.mono - _heard(turn, node)


def _ask_for_proof(turn: Turn, heard: float) -> None:
    """Of rank 0's agent if it can be asked, else of the endpoint itself. Asked once a few seconds."""
    asked = turn.gang.proof_asked
    if asked is not None and turn.now.mono - asked < turn.limits.proof_ask_s and asked > heard:
        return
    turn.change(proof_asked=turn.now.mono)
    head_node = turn.world.nodes.get(turn.record.nodes[0])
    if head_node is not None and head_node.state == "alive":
        turn.change(tasks=tuple(t for t in turn.gang.tasks if t.task.kind != "canary"))
        turn.ask("canary", head_node.id, {"rank": turn.record.specs[0].name}, turn.limits.second_path_s)
    elif turn.record.specs[0].probe is not None:
        turn.commands.append(PulseEndpoint(turn.record.specs[0].probe))

"""Nodes that are silent: are they lost, or is only the control connection? Rules of the gang machine.

A node is lost when it is silent on both paths. The second path goes through the gang itself: a token, or a
counter that moved, needs every rank, so it proves that the silent node computes (design §2, invariant 6).

    last word ──2 s── suspect: a proof is asked for ──4 s── silent ──5.5 s── none since: lost

A proof from before `silent` may be of a node whose beats were late and that died thereafter: then another one
is asked for at 4 s, and by 7 s it is there or the node is lost.

Who can be asked depends on who is silent:
    a follower's node      rank 0's agent sends a pulse to its own API
    rank 0's node          the coordinator sends the pulse; if it cannot be delivered, another node tries to
                           reach rank 0's rendezvous and API, for it may be us that cannot
    every node             nobody: it is the coordinator that is cut off, and it judges nothing

A pulse that could not be delivered says nothing about the engine. While a gang boots there is no proof to be
had; then silence for a lease counts as loss, unless it is the coordinator that is cut off.
"""

from sparkd.fleet.nodes import Node
from sparkd.gang.state import PulseEndpoint
from sparkd.gang.turn import Turn


def lost_while_booting(turn: Turn) -> int | None:
    """The rank whose node has been silent for longer than a lease."""
    if _cut_off(turn):
        return None
    for rank, node in _members(turn):
        if turn.now.mono - _heard(turn, node) >= turn.limits.lease_s:
            return rank
    return None


def lost_while_serving(turn: Turn) -> int | None:
    """The rank whose node is silent on both paths. Asks for a proof as soon as a node is suspect."""
    proved_at = last_proof(turn)
    for rank, node in _members(turn):
        if node is not None and node.state == "alive":
            continue
        heard = _heard(turn, node)
        silent_at = heard + turn.limits.node_silent_s
        if proved_at is not None and proved_at > silent_at:
            # It computed after it should have spoken. While rank 0's agent is away, the pulse is our task.
            if rank == 0 and turn.now.mono - proved_at >= turn.limits.pulse_silence_s:
                _ask_for_proof(turn, heard)
            continue
        if proved_at is not None and proved_at > heard + turn.limits.beat_s * 1.5:
            # Perhaps; or its last beats were late and it died thereafter: only a proof from now on tells.
            silent = unproved(turn, silent_at)
        else:
            silent = turn.now.mono >= silent_at + turn.limits.second_path_s
            _ask_for_proof(turn, heard)
        if silent and _second_path_is_silent(turn, rank):
            return rank
    return None


def unproved(turn: Turn, since: float) -> bool:
    """Whether a proof that was asked for after `since` has not come. Asks for one."""
    asked = turn.gang.proof_asked
    # What rank 0's agent was told comes with its next beats; our own pulse is answered or not.
    patience_s = turn.limits.second_path_s if head_is_away(turn) else turn.limits.proof_ask_s
    missing = asked is not None and asked >= since and turn.now.mono - asked >= patience_s
    if turn.now.mono >= since and not missing:
        _ask_for_proof(turn, since)
    return missing


def last_proof(turn: Turn) -> float | None:
    """When a step was last completed that needed every rank: as rank 0's agent saw it, or as we saw it."""
    found = [turn.gang.endpoint_proof] if turn.gang.endpoint_proof is not None else []
    head_node = turn.world.nodes.get(turn.record.nodes[0])
    head = turn.report(0)
    if head_node is not None and head_node.heard is not None and head is not None and head.probe is not None:
        ages = (head.probe.proof_age_s, head.probe.moved_age_s)
        found += [head_node.heard - age for age in ages if age is not None]
    return max(found, default=None)


def proof_is_overdue(turn: Turn) -> bool:
    """No proof within the stated bound (design §2, invariant 2): the gang may not be called ready."""
    probe = turn.record.specs[0].probe
    bound = (
        probe.pulse_silence_s + probe.pulse_timeout_s
        if probe is not None
        else turn.limits.pulse_silence_s + turn.limits.pulse_timeout_s
    )
    counted_from = (turn.gang.ready_since or 0.0, turn.gang.restored_at, last_proof(turn) or 0.0)
    return turn.now.mono - max(counted_from) > bound


def head_is_away(turn: Turn) -> bool:
    node = turn.world.nodes.get(turn.record.nodes[0])
    return node is None or not node.in_contact


def _members(turn: Turn) -> list[tuple[int, Node | None]]:
    return [(rank, turn.world.nodes.get(node_id)) for rank, node_id in enumerate(turn.record.nodes)]


def _heard(turn: Turn, node: Node | None) -> float:
    """The last receipt; a node that has not spoken in this life counts from the end of the hold."""
    counted_from = max(turn.world.silence_counts_from, turn.gang.restored_at)
    if node is None or node.heard is None:
        return counted_from
    return max(node.heard, counted_from)


def _cut_off(turn: Turn) -> bool:
    return not any(node.in_contact for node in turn.world.nodes.values())


def _second_path_is_silent(turn: Turn, rank: int) -> bool:
    """Whether those who could be asked have found nothing."""
    if rank > 0 and not head_is_away(turn):
        return True  # rank 0's agent was asked for a pulse at `suspect`, and none has come
    answers = [task.result for task in turn.gang.tasks if task.task.kind == "probe" and task.result]
    return any(result.ok and not result.result.get("reached") for result in answers)


def _ask_for_proof(turn: Turn, since: float) -> None:
    """Once in a few seconds, whoever can be asked; what was asked before `since` does not count."""
    asked = turn.gang.proof_asked
    if asked is not None and turn.now.mono - asked < turn.limits.proof_ask_s and asked >= since:
        return
    turn.change(
        proof_asked=turn.now.mono,
        tasks=tuple(task for task in turn.gang.tasks if task.task.kind not in ("canary", "probe")),
    )
    spec = turn.record.specs[0]
    if not head_is_away(turn) and turn.world.nodes[turn.record.nodes[0]].state == "alive":
        turn.ask("canary", turn.record.nodes[0], {"rank": spec.name}, turn.limits.second_path_s)
        return
    if spec.probe is not None:
        turn.commands.append(PulseEndpoint(spec.probe))
    helper = _helper(turn)
    if helper is not None:
        targets = [{"host": spec.rendezvous.host, "port": spec.rendezvous.port}]
        if spec.probe is not None:
            targets.append({"host": spec.probe.api.host, "port": spec.probe.api.port})
        turn.ask("probe", helper, {"targets": targets}, turn.limits.second_path_s * 2)


def _helper(turn: Turn) -> str | None:
    """A node that can try to reach rank 0's: a member if one is in contact, else any other."""
    head, *followers = turn.record.nodes
    others = sorted(node_id for node_id in turn.world.nodes if node_id not in turn.record.nodes)
    for node_id in (*followers, *others):
        if node_id != head and turn.world.nodes[node_id].in_contact:
            return node_id
    return None


def in_contact(turn: Turn, rank: int) -> bool:
    node = turn.world.nodes.get(turn.record.nodes[rank])
    return node is not None and node.in_contact


def lost_reason(turn: Turn, rank: int) -> str:
    name = turn.name_of(turn.record.nodes[rank])
    return f"node {name} is lost: no word from its agent, and no proof that its rank computes"

"""Before anything runs: pending and preflight, up to the commit of a generation. Gang machine rules."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from sparkd.errors import SparkdError
from sparkd.fleet.nodes import Node
from sparkd.fleet.placement import place
from sparkd.gang import trial
from sparkd.gang.collective import stuck_on, stuck_words
from sparkd.gang.ending import begin_recovering, begin_stopping
from sparkd.gang.state import Answers, PendingTask
from sparkd.gang.turn import Turn
from sparkd.records.report import TaskResult
from sparkd.records.verdict import Severity, Verdict


def note_task(turn: Turn, node: str, result: TaskResult) -> None:
    """Keep the answer to a question that is still open; anything else is an answer come too late."""
    turn.change(
        tasks=tuple(
            replace(task, result=result) if (task.node, task.task.id) == (node, result.id) else task
            for task in turn.gang.tasks
        )
    )


def pending(turn: Turn) -> None:
    """Wait for named nodes or a person; go on when enough nodes are there and nothing old is left on them."""
    record = turn.record
    ranks = rank_count(record.intent.profile)
    names = record.intent.nodes
    placement = place(ranks, names, turn.world.nodes, turn.world.occupied, keep=record.nodes)
    if placement.hopeless:
        verdict = Verdict("NODES_MISSING", Severity.BLOCK, placement.missing)
        turn.enter("failed", placement.missing, verdicts=(verdict,))
        return
    if placement.missing:
        turn.wait(placement.missing, "it starts by itself as soon as that changes", node=placement.node)
        return
    old = _with_old_rank(turn)
    if old is not None:
        turn.wait("an old rank to end", "it starts once nothing of it is left", node=old.id)
        return
    turn.enter("preflight", "all nodes are there", nodes=placement.nodes)
    turn.change(ports_skipped=frozenset(), probe_left=frozenset())


def _with_old_rank(turn: Turn) -> Node | None:
    """A node in contact on which something of this deployment is left: no newer generation before it ends."""
    nodes = turn.world.nodes.values()
    return next((node for node in nodes if node.in_contact and node.existing(turn.record.name)), None)


def rank_count(profile: dict[str, Any]) -> int:
    """Ranks of a resolved profile: tp x pp, one per node."""
    layout = profile.get("layout", {})
    return int(layout.get("tp", 1)) * int(layout.get("pp", 1))


def preflight(turn: Turn) -> None:
    """Ask the nodes what must be known before a launch; commit the next generation when all is well."""
    nodes = _members(turn)
    away = next((node for node in nodes if not node.in_contact), None)
    if away is not None:
        turn.enter("pending", f"node {away.name} went away during the preflight")
        return
    back = _with_old_rank(turn)
    if back is not None:
        turn.enter("pending", f"node {back.name} came back with an old rank during the preflight")
        return
    stuck = next(((node, left) for node in nodes if (left := stuck_on(node)) is not None), None)
    if stuck is not None:
        turn.enter("pending", f"node {stuck[0].name} runs {stuck_words(stuck[1])}")
        return
    if turn.gang.collective is not None:
        if trial.is_over(turn):
            _commit(turn, nodes)
        return
    if not turn.gang.tasks:
        _ask_all(turn, nodes)
    unanswered = [task for task in turn.gang.tasks if task.result is None and not _is_given_up(turn, task)]
    overdue = next((task for task in unanswered if turn.now.mono >= task.until), None)
    if overdue is not None:
        name = turn.name_of(overdue.node)
        _fail(
            turn,
            f"node {name} did not answer the preflight within {overdue.task.deadline_s:.0f} s",
            Verdict("PREFLIGHT_SILENT", Severity.BLOCK, f"no answer to {overdue.task.kind}", node=name),
        )
        return
    for task in unanswered:
        then = "it goes on without" if task.task.kind == "facts" else "the preflight fails"
        turn.wait(f"{task.task.kind} check", then, node=task.node, deadline=task.until)
        return
    if _ports_free(turn):
        _commit(turn, nodes)


def _is_given_up(turn: Turn, task: PendingTask) -> bool:
    """A node that does not say in what state it is may start its rank; the planner tells of it."""
    return task.task.kind == "facts" and turn.now.mono >= task.until


def _members(turn: Turn) -> tuple[Node, ...]:
    return tuple(turn.world.nodes[node_id] for node_id in turn.record.nodes)


def _ask_all(turn: Turn, nodes: tuple[Node, ...]) -> None:
    deadline = turn.limits.preflight_s
    model = turn.record.intent.profile.get("model", {})
    for node in nodes:
        turn.ask("files", node.id, {"model": model}, deadline)
        turn.ask("facts", node.id, {}, turn.limits.facts_s)
        if turn.record.intent.image is not None:
            image = {"image": turn.record.intent.image}
            turn.ask("image", node.id, image, deadline + turn.limits.image_facts_s)
    _ask_ports(turn, nodes[0].id)


def _ask_ports(turn: Turn, node: str) -> None:
    """The API's, and two new ones: the collective probe must not leave its connections to the ranks."""
    rendezvous, probe = islice(_new_ports(turn), 2)
    wanted = {"api": _api_port(turn), "rendezvous": rendezvous, "probe": probe}
    args = {"ports": [{"port": port, "for": use} for use, port in wanted.items()]}
    turn.ask("port", node, args, turn.limits.preflight_s)


def _wished_port(turn: Turn) -> int | None:
    port = turn.record.intent.profile.get("api", {}).get("port")
    return int(port) if port is not None else None


def _api_port(turn: Turn) -> int:
    """The same over generations; else the wish of the profile; else the first that nobody holds."""
    if turn.record.api_port and turn.record.api_port not in turn.gang.ports_skipped:
        return turn.record.api_port
    wish = _wished_port(turn)
    if wish is not None:
        return wish
    taken = turn.world.api_ports | turn.gang.ports_skipped
    ports = range(turn.limits.api_port_first, turn.limits.api_port_last + 1)
    return next((port for port in ports if port not in taken), turn.limits.api_port_first)


def _new_ports(turn: Turn) -> Iterator[int]:
    """New for each generation and not one of the last 20, so that a stale rank meets nobody."""
    first, last = turn.limits.rendezvous_port_first, turn.limits.rendezvous_port_last
    used = turn.record.rendezvous_ports[-turn.limits.rendezvous_ports_remembered :]
    start = used[-1] + 1 if used else first + spread(turn.record.name, last - first)
    span = last - first + 1
    candidates = (first + (start - first + i) % span for i in range(span))
    taken = {*used, *turn.gang.ports_skipped, _api_port(turn)}
    return (port for port in candidates if port not in taken)


def spread(name: str, span: int) -> int:
    """Two deployments start at different ports, so that they rarely ask for the same one."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % span


def _ports_free(turn: Turn) -> bool:
    """Judge the answer about ports; ask again for other ones where that can help."""
    task = _newest(turn, "port")
    result = task.result
    if result is None or not result.ok:
        _refused_answer(turn, task)
        return False
    taken = [entry for entry in result.result.get("ports", []) if not entry.get("free")]
    if not taken:
        return True
    api = next((entry for entry in taken if entry.get("for") == "api"), None)
    fixed = api is not None and (_wished_port(turn) is not None or turn.record.generation > 0)
    turn.change(
        ports_skipped=turn.gang.ports_skipped
        | {int(e["port"]) for e in taken if e.get("for") != "api" or not fixed}
    )
    if api is not None and fixed and turn.now.mono - turn.gang.phase_since >= turn.limits.port_retry_s:
        taken_by = port_taken(api, turn.name_of(task.node))
        _fail(turn, f"{taken_by.title} on {taken_by.node}: {taken_by.evidence}", taken_by)
        return False
    if len(turn.gang.ports_skipped) > turn.limits.rendezvous_ports_remembered:
        _fail(turn, "no free port was found", Verdict("PORT_IN_USE", Severity.BLOCK, "no free port"))
        return False
    turn.change(tasks=tuple(t for t in turn.gang.tasks if t is not task))
    _ask_ports(turn, task.node)
    turn.wait("a free port", "the preflight fails", node=task.node)
    return False


def port_taken(entry: Mapping[str, Any], node: str) -> Verdict:
    """What it means that a port which cannot be another one is not free. `entry` is the node's answer."""
    return Verdict(
        "PORT_IN_USE",
        Severity.BLOCK,
        f"API port {entry['port']} is taken",
        evidence=f"held by {entry.get('owner') or 'another program'}",
        remedy="stop that program, or choose another port: --set api.port=PORT",
        node=node,
    )


def odd_answers(error: Exception, title: str = "no plan can be made of what the nodes answered") -> Verdict:
    """What nodes say may be odd in ways that nobody foresaw."""
    return Verdict(
        "PREFLIGHT_ERROR",
        Severity.BLOCK,
        title,
        evidence=f"{type(error).__name__}: {error}",
        remedy="see that the agents are of the coordinator's version: sparkd nodes upgrade",
    )


def _newest(turn: Turn, kind: str) -> PendingTask:
    return [task for task in turn.gang.tasks if task.task.kind == kind][-1]


def _refused_answer(turn: Turn, task: PendingTask) -> None:
    error = task.result.error if task.result else "no answer"
    name = turn.name_of(task.node)
    _fail(
        turn,
        f"node {name} could not check {task.task.kind}: {error}",
        Verdict("PREFLIGHT_ERROR", Severity.BLOCK, f"{task.task.kind}: {error}", node=name),
    )


def _answers(turn: Turn) -> dict[str, Answers]:
    found: dict[str, dict[str, TaskResult | None]] = {}
    for task in turn.gang.tasks:
        if task.task.kind in ("files", "facts", "image"):
            found.setdefault(task.node, {})[task.task.kind] = task.result
    return dict(found)


def _commit(turn: Turn, nodes: tuple[Node, ...]) -> None:
    """Make the next generation: greater than every one that any node has heard of."""
    record = turn.record
    before = {name: getattr(record, name) for name in ("generation", "api_port", "rendezvous_ports")}
    answers = _answers(turn)
    known = [node.generations.get(record.name, 0) for node in turn.world.nodes.values()]
    generation = 1 + max(record.generation, *known)
    answer = _newest(turn, "port").task.args["ports"]
    ports = {entry["for"]: int(entry["port"]) for entry in answer}
    remembered = turn.limits.rendezvous_ports_remembered
    turn.write(
        generation=generation,
        api_port=ports["api"],
        rendezvous_ports=(*record.rendezvous_ports, ports["rendezvous"])[-remembered:],
    )
    if turn.world.planner is None:
        raise AssertionError("a world without a planner cannot launch")
    try:
        launch = turn.world.planner(turn.record, nodes, answers)
    except SparkdError as error:
        turn.write(**before)
        _fail(turn, str(error), Verdict("PLAN_INVALID", Severity.BLOCK, str(error)))
        return
    except Exception as error:  # noqa: BLE001 - it ends this launch, and not the coordinator of all others
        turn.write(**before)
        odd = odd_answers(error)
        _fail(turn, f"{odd.title}: {odd.evidence}", odd)
        return
    verdicts = launch.verdicts + trial.verdicts(turn, launch)
    blocks = [v for v in verdicts if v.severity is Severity.BLOCK and not v.waived]
    if blocks:
        turn.write(**before)
        _fail(turn, _in_words(blocks), *verdicts)
        return
    if trial.is_due(turn, launch):
        turn.write(**before)
        trial.start(turn, launch, nodes, ports["probe"])
        return
    for verdict in verdicts:
        if verdict.waived:
            where = f" on {verdict.node}" if verdict.node else ""
            turn.say("waived", f"{verdict.id}{where} was waived by --force: {verdict.title}")
    turn.enter(
        "launching",
        f"generation {generation} on {', '.join(node.name for node in nodes)}",
        specs=launch.specs,
        verdicts=(*turn.gang.carried, *verdicts),
        **trial.remembered(turn, launch),
    )
    turn.change(launched_at=turn.now.mono, ready_since=None, carried=(), proof_asked=None, blocked_since=None)


def _in_words(blocks: list[Verdict]) -> str:
    first = blocks[0]
    where = f"{first.node}: " if first.node else ""
    why = f": {first.evidence}" if first.evidence else ""
    more = f" (and {len(blocks) - 1} more)" if len(blocks) > 1 else ""
    return f"{where}{first.title}{why}{more}"


def _fail(turn: Turn, reason: str, *verdicts: Verdict) -> None:
    """Nothing runs yet, or a probe at most: to `failed` when a person waits for it.

    After a fall nobody does, and what blocks may pass by itself: a port that still trains after the reboot, a
    switch that starts, a model root that is not mounted yet. So it is looked at again, less and less often.
    """
    since = turn.gang.blocked_since if turn.gang.blocked_since is not None else turn.now.mono
    if turn.record.fall is None or turn.now.mono - since >= turn.limits.boot_max_s:
        if turn.gang.probe_left:
            begin_stopping(turn, reason, ending="failed")
            turn.write(verdicts=verdicts)
        else:
            turn.enter("failed", reason, verdicts=verdicts)
        return
    longest_s = turn.policy.backoff_max_s
    delay_s = min(max(turn.policy.backoff_s, (turn.now.mono - since) / 2), longest_s)
    begin_recovering(turn, f"not launched again: {reason}; looked at again after {delay_s:.0f} s", delay_s)
    turn.write(verdicts=verdicts)
    turn.change(blocked_since=since)

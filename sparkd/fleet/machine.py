"""The fleet machine: who is in contact, who may speak, and what deployments share. Pure.

Each function takes the state and one thing that happened, and gives the new state, the commands, and the
answer. The reconciler stores what is durable before it lets anybody see an answer or a document.
"""

from dataclasses import replace

from sparkd.clock import Instant
from sparkd.errors import (
    Conflict,
    CoordinatorStarting,
    IntentDiffers,
    NeedsHello,
    NotFound,
    Refused,
    UsageError,
)
from sparkd.fleet import amnesia, collectives
from sparkd.fleet.documents import publication, publish
from sparkd.fleet.members import node_called
from sparkd.fleet.nodes import Node, contact, greet, hear
from sparkd.fleet.state import Commands, ErrandDone, Fleet, FleetCommand, NodeSaid, Superseded, Told
from sparkd.gang import machine as gang_machine
from sparkd.gang.collective import stuck_on, stuck_words
from sparkd.gang.state import (
    Down,
    EndpointPulsed,
    Exited,
    Gang,
    GangEvent,
    PendingTask,
    Reported,
    Restart,
    Say,
    TaskDone,
    Tick,
    Up,
    World,
)
from sparkd.records.defaults import DEFAULTS, PROTOCOL, Defaults
from sparkd.records.document import Follow
from sparkd.records.intent import Intent
from sparkd.records.names import is_deployment_name
from sparkd.records.report import Caller, Hello, Report, ReportAnswer, Welcome

Step = tuple[Fleet, Commands]


# Agents speak. ------------------------------------------------------------------------------------------


def hello(
    fleet: Fleet, hello: Hello, now: Instant, limits: Defaults = DEFAULTS
) -> tuple[Fleet, Commands, Welcome]:
    """Take a hello. Raises Refused for a node that is not enrolled or obeys another holder."""
    caller = hello.caller
    _check_protocol(caller)
    if fleet.enrolled and caller.node not in fleet.enrolled:
        raise Refused(f"node {caller.node} is not enrolled with this coordinator")
    commands: list[FleetCommand] = []
    if not _is_ours(fleet, hello):
        reason = f"node {hello.facts.name} obeys holder {hello.holder or 'nobody'}, not {fleet.holder}"
        return fleet, (Superseded(reason),), _welcome(fleet, limits)
    higher = hello.highest_term > fleet.term or (
        hello.highest_term == fleet.term and hello.highest_instance not in ("", fleet.instance)
    )
    if higher and hello.lease_live:
        reason = f"a coordinator of term {hello.highest_term} holds node {hello.facts.name}"
        return fleet, (Superseded(reason),), _welcome(fleet, limits)
    if higher:
        term = hello.highest_term + 1
        lives = fleet.lives | {(term, fleet.instance)}
        # Somebody else has acted: what the other nodes know must be heard anew as well.
        nodes = {node.id: replace(node, greeted=False) for node in fleet.nodes.values()}
        fleet = replace(
            fleet, term=term, lives=lives, documents={}, nodes=nodes, old=True, known_again=frozenset()
        )
        commands.append(
            NodeSaid(caller.node, f"took term {fleet.term}: a node had seen {hello.highest_term}")
        )
    known = fleet.nodes.get(caller.node) or Node(
        caller.node, hello.facts.name, drained=caller.node in fleet.drained
    )
    if known.run == caller.run and not _is_fresh(known, caller):
        # Overtaken by younger words of the same run: it is welcome, and puts nothing back.
        return fleet, tuple(commands), _welcome(fleet, limits)
    node = greet(known, hello, now)
    node = replace(node, state="alive", since_wall=now.wall)
    if known.state != "alive" or known.run != node.run:
        reason = "said hello" if known.run == node.run else f"said hello (agent {hello.version}, new run)"
        commands.append(NodeSaid(node.id, reason, known.state, "alive"))
    # Its document stays: revisions must not fall within a term, or the node would refuse them.
    fleet = replace(fleet, nodes={**fleet.nodes, node.id: node})
    fleet = amnesia.learn(fleet, hello, now)
    fleet, more = _settle_hold(fleet, now, limits)
    commands += more
    fleet, more = _step_gangs(fleet, [(name, Reported(node.id)) for name in fleet.gangs], now, limits)
    return publish(fleet), (*commands, *more), _welcome(fleet, limits)


def check_greeted(fleet: Fleet, caller: Caller) -> Node:
    """The node of a caller that may report and poll. Raises NeedsHello."""
    _check_protocol(caller)
    node = fleet.nodes.get(caller.node)
    if node is None or not node.greeted or node.run != caller.run:
        raise NeedsHello(f"run {caller.run} of node {caller.node} has not said hello to {fleet.instance}")
    return node


def report(
    fleet: Fleet, report: Report, now: Instant, limits: Defaults = DEFAULTS
) -> tuple[Fleet, Commands, ReportAnswer]:
    """Take a report. State that was overtaken is dropped; exits and task results always count."""
    node = check_greeted(fleet, report.caller)
    before = node
    fresh = _is_fresh(node, report.caller)
    if fresh:
        node = hear(node, report, now)
        fleet = replace(fleet, nodes={**fleet.nodes, node.id: node})
    fleet, commands = _note_contact(fleet, node, now, limits)
    gang_events: list[tuple[str, GangEvent]] = []
    for exit_ in report.exits:
        gang_events += [(name, Exited(node.id, exit_)) for name in fleet.gangs]
    for result in report.results:
        gang_events += [(name, TaskDone(node.id, result)) for name in fleet.gangs]
        if any(errand.task.id == result.id for errand in fleet.errands):
            commands = (*commands, ErrandDone(node.id, result))
    if report.results and fleet.errands:
        answered = {result.id for result in report.results}
        fleet = replace(fleet, errands=tuple(e for e in fleet.errands if e.task.id not in answered))
    if fresh and not fleet.holding:
        for name, gang in fleet.gangs.items():
            if node.id in gang.record.nodes or node.existing(name) or before.existing(name):
                gang_events.append((name, Reported(node.id)))
    fleet, more = _step_gangs(fleet, gang_events, now, limits)
    if report.results:
        fleet = publish(fleet)
    if fresh:
        told = tuple(NodeSaid(node.id, event.reason, kind=event.kind) for event in report.events)
        commands = (*commands, *told)
    newest = fleet.nodes[node.id].published
    # No gang takes anything in during the hold: what only the ledger keeps has to come again.
    acked = 0 if fleet.holding else report.caller.seq
    answer = ReportAnswer(acked, limits.lease_s, newest, serving=_serving(fleet, node.id))
    return fleet, (*commands, *more), answer


def _serving(fleet: Fleet, node_id: str) -> tuple[str, ...]:
    """Names of the node's ranks whose gang is ready."""
    return tuple(
        spec.name
        for gang in fleet.gangs.values()
        if gang.record.phase == "ready"
        for member, spec in zip(gang.record.nodes, gang.record.specs, strict=True)
        if member == node_id
    )


def _is_ours(fleet: Fleet, hello: Hello) -> bool:
    return hello.holder == fleet.holder


def _is_fresh(node: Node, caller: Caller) -> bool:
    """Whether a request is younger than everything this run has said; requests may overtake each other."""
    return caller.seq > node.seq


def _check_protocol(caller: Caller) -> None:
    if caller.protocol not in (PROTOCOL, PROTOCOL - 1):
        raise Refused(f"agent protocol {caller.protocol} is not served here, only {PROTOCOL}")


def _welcome(fleet: Fleet, limits: Defaults) -> Welcome:
    return Welcome(fleet.term, fleet.holder, fleet.instance, limits.lease_s, limits.beat_s)


# Time passes. -------------------------------------------------------------------------------------------


def tick(fleet: Fleet, now: Instant, limits: Defaults = DEFAULTS) -> Step:
    """Judge silence, the hold and every gang's deadlines."""
    if fleet.ticked and now.mono - fleet.ticked > limits.stall_s:
        # It was this process that did not listen: what the nodes said meanwhile is still to be read.
        fleet = replace(fleet, silence_from=now.mono)
    fleet = replace(fleet, ticked=now.mono)
    fleet, commands = _settle_hold(fleet, now, limits)
    for node in tuple(fleet.nodes.values()):
        fleet, more = _note_contact(fleet, node, now, limits)
        commands = (*commands, *more)
    expired = [errand for errand in fleet.errands if now.mono >= errand.until]
    if expired:
        fleet = publish(replace(fleet, errands=tuple(e for e in fleet.errands if e not in expired)))
    fleet = collectives.expire(fleet, now, limits)
    fleet, more = _step_gangs(fleet, [(name, Tick()) for name in fleet.gangs], now, limits)
    return fleet, (*commands, *more)


def _note_contact(fleet: Fleet, node: Node, now: Instant, limits: Defaults) -> Step:
    state = contact(node, now, fleet.silence_from if not fleet.holding else now.mono, limits)
    if state == node.state:
        return fleet, ()
    quiet = now.mono - node.heard if node.heard is not None else 0.0
    reason = "in contact" if state == "alive" else f"no word from its agent for {quiet:.1f} s"
    changed = replace(node, state=state, since_wall=now.wall)
    return replace(fleet, nodes={**fleet.nodes, node.id: changed}), (
        NodeSaid(node.id, reason, node.state, state),
    )


def _settle_hold(fleet: Fleet, now: Instant, limits: Defaults) -> Step:
    """The hold of a start ends when every enrolled node has said hello, or after its time."""
    if not fleet.holding:
        return fleet, ()
    greeted = {node.id for node in fleet.nodes.values() if node.greeted}
    complete = bool(fleet.enrolled) and fleet.enrolled <= greeted
    if not complete and now.mono - fleet.started < limits.startup_hold_s:
        return fleet, ()
    fleet = publish(amnesia.review(replace(fleet, holding=False, silence_from=now.mono), now))
    missing = sorted(fleet.enrolled - greeted)
    reason = "every enrolled node has said hello" if not missing else f"no hello from {', '.join(missing)}"
    said = NodeSaid("", f"the hold of the start is over: {reason}", kind="coordinator")
    # Every node in contact has just said what exists on it; the gangs judge that now.
    events: list[tuple[str, GangEvent]] = [(name, Tick()) for name in fleet.gangs]
    fleet, commands = _step_gangs(fleet, events, now, limits)
    return fleet, (said, *commands)


# People ask. --------------------------------------------------------------------------------------------


def up(
    fleet: Fleet, name: str, intent: Intent, now: Instant, limits: Defaults = DEFAULTS
) -> tuple[Fleet, Commands, str]:
    """`created`, `started` (it was stopped or failed) or `running` (the same intent already is).

    Raises IntentDiffers when it runs with another intent, CoordinatorStarting during the hold.
    """
    _check_ready_for_people(fleet)
    if not is_deployment_name(name):
        raise UsageError(f"{name!r} is no deployment name: up to 40 of a-z, 0-9 and inner hyphens")
    gang = fleet.gangs.get(name)
    if name in fleet.held:
        waiting = gang.waiting.what if gang is not None and gang.waiting is not None else "its nodes"
        raise CoordinatorStarting(f"{name} is held, waiting for {waiting}; `sparkd down {name}` ends that")
    if gang is None:
        gang = gang_machine.create(name, intent, now, serial=1 + amnesia.highest_serial(fleet, name))
        known = fleet.known_again | {name}
        fleet = _asked(replace(fleet, gangs={**fleet.gangs, name: gang}, known_again=known), name)
        fleet, commands = _step_gangs(fleet, [(name, Tick())], now, limits)
        created = Told(name, 0, Say("phase", "asked for", to="pending"))
        return publish(fleet), (created, *commands), "created"
    ending = gang.record.phase in gang_machine.ENDED or (
        gang.record.phase == "stopping" and gang.record.ending != "pending"
    )
    intent = with_kept_image(fleet, name, intent)
    if not ending:
        if gang.record.intent.digest() == intent.digest():
            return fleet, (), "running"
        raise IntentDiffers(f"{name} runs with another intent", ())
    fleet, commands = _step_gangs(_asked(fleet, name), [(name, Up(intent))], now, limits)
    return fleet, commands, "started"


def with_kept_image(fleet: Fleet, name: str, intent: Intent) -> Intent:
    """The site chose an image for this deployment before, and is not asked for it again."""
    gang = fleet.gangs.get(name)
    if intent.image is not None or gang is None:
        return intent
    return replace(intent, image=gang.record.intent.image)


def down(fleet: Fleet, name: str, now: Instant, limits: Defaults = DEFAULTS) -> Step:
    """Stop a deployment; idempotent. Raises NotFound."""
    _check_ready_for_people(fleet)
    _known(fleet, name)
    if name in fleet.held:
        fleet = amnesia.take_down(fleet, name, now)
    return _step_gangs(_asked(fleet, name), [(name, Down())], now, limits)


def endpoint_pulsed(
    fleet: Fleet, name: str, pulsed: EndpointPulsed, now: Instant, limits: Defaults = DEFAULTS
) -> Step:
    """What became of a pulse that the coordinator itself sent to a deployment's endpoint."""
    if name not in fleet.gangs:
        return fleet, ()
    return _step_gangs(fleet, [(name, pulsed)], now, limits)


def restart(fleet: Fleet, name: str, generation: int, now: Instant, limits: Defaults = DEFAULTS) -> Step:
    """Start a new generation in place of `generation`; a repeated request finds a newer one and does nothing.

    Raises NotFound, and Conflict for a generation that is still to come or a deployment asked to stop.
    """
    _check_ready_for_people(fleet)
    gang = _known(fleet, name)
    if generation > gang.record.generation:
        raise Conflict(f"{name} is at generation {gang.record.generation}, not yet at {generation}")
    if gang.record.desired == "down":
        # A request that was on its way while somebody stopped the deployment must not bring it back.
        raise Conflict(f"{name} was asked to stop; start it with `sparkd up`")
    return _step_gangs(_asked(fleet, name), [(name, Restart(generation))], now, limits)


def drain(fleet: Fleet, name: str, *, drained: bool, now: Instant, limits: Defaults = DEFAULTS) -> Step:
    """Give a node no new rank any more, or again. What runs there goes on. Raises NotFound."""
    node = node_called(fleet, name)
    if node.drained == drained:
        return fleet, ()
    changed = replace(node, drained=drained)
    ids = fleet.drained | {node.id} if drained else fleet.drained - {node.id}
    fleet = replace(fleet, nodes={**fleet.nodes, node.id: changed}, drained=ids)
    reason = "drained: it gets no new rank" if drained else "resumed: it may get ranks again"
    said = NodeSaid(node.id, reason)
    fleet, commands = _step_gangs(fleet, [(n, Tick()) for n in fleet.gangs], now, limits)
    return fleet, (said, *commands)


def follow(fleet: Fleet, node: str, follows: tuple[Follow, ...]) -> Fleet:
    """Which ranks' log lines a node should send live."""
    return publish(replace(fleet, follows={**fleet.follows, node: follows}))


def send_errand(fleet: Fleet, errand: PendingTask) -> Fleet:
    """Put a question to a node that no gang asks; the answer comes as `ErrandDone`."""
    return publish(replace(fleet, errands=(*fleet.errands, errand)))


def _asked(fleet: Fleet, name: str) -> Fleet:
    return replace(fleet, asked=fleet.asked | {name})


def _known(fleet: Fleet, name: str) -> Gang:
    gang = fleet.gangs.get(name)
    if gang is None:
        known = ", ".join(sorted(fleet.gangs)) or "none"
        raise NotFound(f"no deployment is called {name!r} (known: {known})")
    return gang


def _check_ready_for_people(fleet: Fleet) -> None:
    if fleet.holding:
        raise CoordinatorStarting(
            "the coordinator has just started and waits for its nodes; try again in a moment"
        )


# Gangs act. ---------------------------------------------------------------------------------------------


def world_of(fleet: Fleet, name: str) -> World:
    """What one gang may look at."""
    occupied: dict[str, str] = {}
    for other_name, other in sorted(fleet.gangs.items()):
        if other_name != name and other.record.phase not in gang_machine.ENDED:
            occupied.update(dict.fromkeys(other.record.nodes, other_name))
    others = [g for n, g in fleet.gangs.items() if n != name and g.record.phase not in gang_machine.ENDED]
    for node in fleet.nodes.values():
        for other_name in fleet.gangs:
            if other_name != name and node.existing(other_name):
                occupied[node.id] = other_name
        stuck = stuck_on(node)
        if stuck is not None and node.in_contact:
            occupied[node.id] = stuck_words(stuck)
    ports = frozenset(other.record.api_port for other in others)
    proven = frozenset(gang.record.probed for gang in fleet.gangs.values() if gang.record.proven)
    return World(
        fleet.nodes,
        occupied,
        ports,
        fleet.planner,
        fleet.silence_from,
        collectives.next_number(fleet),
        proven,
    )


def _step_gangs(
    fleet: Fleet, events: list[tuple[str, GangEvent]], now: Instant, limits: Defaults
) -> tuple[Fleet, Commands]:
    """Step gangs in the order given; documents follow if what they show of a gang changed."""
    if fleet.holding:
        return fleet, ()
    commands: list[FleetCommand] = []
    stale = False
    for name, event in events:
        if name in fleet.held:
            continue
        old = fleet.gangs[name]
        new, told = gang_machine.step_apart(old, event, world_of(fleet, name), now, limits)
        if new == old and not told:
            continue
        stale = stale or publication(new) != publication(old)
        fleet = replace(fleet, gangs={**fleet.gangs, name: new})
        if new.collective is not None:
            fleet = replace(fleet, probes=max(fleet.probes, new.collective.number))
        commands += [Told(name, new.record.generation, command) for command in told]
    return (publish(fleet) if stale else fleet), tuple(commands)

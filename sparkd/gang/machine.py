"""The gang machine: what becomes of one deployment. Pure: `(state, event, world, now) -> (state, commands)`.

      up ┌──────────────────────────── stopped, failed <──────────────────────────┐
         v                                                                        │
      pending ──> preflight ──> launching ──> loading ──> warming ──> ready       │
         ^            │             │            │           │          │         │
         │            │             └────────────┴─── fall ──┴──────────┤         │
         │            │                                                 v         │
         └────────────┼───── old ranks proved gone, back-off over ── recovering   │
                      │                                                           │
                      └──────────── down, or no retry left ──────────> stopping ──┘

Rules look at levels, not edges: an event only brings new facts in, then `_advance` asks each time what the
present facts allow. So a message that comes twice, late or out of order changes nothing.
"""

from collections.abc import Mapping
from dataclasses import replace

from sparkd.clock import Instant
from sparkd.gang import boot, ending, preflight, recovery, serving
from sparkd.gang.budget import Budget
from sparkd.gang.collective import wanted_of
from sparkd.gang.record import GangRecord
from sparkd.gang.state import (
    Complain,
    Down,
    EndpointPulsed,
    Exited,
    Fault,
    Gang,
    GangCommand,
    GangEvent,
    Reported,
    Restart,
    Say,
    TaskDone,
    Tick,
    Up,
    World,
)
from sparkd.gang.turn import Turn
from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd.records.intent import Intent
from sparkd.records.rank import RankSpec
from sparkd.records.status import Phase

BOOTING: frozenset[Phase] = frozenset({"launching", "loading", "warming"})
RUNNING: frozenset[Phase] = BOOTING | {"ready"}
ENDED: frozenset[Phase] = frozenset({"stopped", "failed"})


def create(name: str, intent: Intent, now: Instant, serial: int = 1) -> Gang:
    """A deployment that did not exist."""
    record = GangRecord(name=name, intent=intent, serial=serial, since_wall=now.wall)
    return Gang(record, phase_since=now.mono)


def restore(record: GangRecord, now: Instant) -> Gang:
    """A deployment as a new life of the coordinator finds it: nothing is observed yet.

    A preflight has left nothing behind, so it starts over; every other phase goes on from what the nodes say.
    """
    gang = Gang(
        record,
        phase_since=now.mono,
        progress_at=now.mono,
        stop_since=now.mono,
        restored_at=now.mono,
        ready_since=now.mono if record.phase == "ready" else None,
    )
    if record.phase == "preflight":
        turn = Turn(gang, World({}), now)
        turn.enter("pending", "the coordinator restarted during the preflight")
        return turn.gang
    return gang


def step(
    gang: Gang, event: GangEvent, world: World, now: Instant, limits: Defaults = DEFAULTS
) -> tuple[Gang, tuple[GangCommand, ...]]:
    """Take one event in and act on what is now known."""
    turn = Turn(gang, world, now, limits)
    match event:
        case Up(intent):
            _up(turn, intent)
        case Down():
            _down(turn)
        case Restart(generation):
            _restart(turn, generation)
        case Exited(_, exit_):
            ending.note_exit(turn, exit_)
        case TaskDone(node, result):
            preflight.note_task(turn, node, result)
        case Reported(node):
            ending.note_report(turn, node)
        case EndpointPulsed(outcome):
            serving.note_pulse(turn, outcome)
        case Tick():
            pass
    _advance(turn)
    return turn.gang, tuple(turn.commands)


def step_apart(
    gang: Gang, event: GangEvent, world: World, now: Instant, limits: Defaults = DEFAULTS
) -> tuple[Gang, tuple[GangCommand, ...]]:
    """As `step`, and a rule with a fault stays its own: nothing of the decision is taken, so nodes are
    told what the last whole decision said. People hear of it once, until decisions have been made again for a
    while.

    Raises what a rule raises for `Up` and `Restart`, as the answer to whoever asks. `Down` needs no rule.
    """
    commands: tuple[GangCommand, ...] = ()
    try:
        new, commands = step(gang, event, world, now, limits)
    except Exception as error:
        if isinstance(event, Up | Restart):
            raise
        if isinstance(event, Down):
            gang, commands = _end_blindly(gang, now, limits)
        reason = f"{type(error).__name__}: {error}"[: limits.fault_chars]
        if gang.fault is None:
            said = f"a decision could not be made, and what was decided before holds: {reason}"
            commands = (*commands, Say("fault", said), Complain(error))
        return replace(gang, fault=Fault(reason, now.mono)), commands
    if new.fault is not None and now.mono - new.fault.at >= limits.fault_over_s:
        return replace(new, fault=None), (*commands, Say("fault", "over: decisions are made again"))
    return new, commands


def _end_blindly(gang: Gang, now: Instant, limits: Defaults) -> tuple[Gang, tuple[GangCommand, ...]]:
    """Somebody wants it gone, and no rule can be asked how to do it well: no rank is wanted any more."""
    turn = Turn(gang, World({}), now, limits)
    _down(turn)
    turn.change(head_gone=True)
    return turn.gang, tuple(turn.commands)


def wanted(gang: Gang) -> Mapping[str, RankSpec]:
    """Which ranks should exist now, the probe's before a launch among them: node id -> spec."""
    record = gang.record
    if gang.collective is not None:
        return wanted_of(gang.collective)
    if record.phase in RUNNING or gang.stacks_until is not None:
        return dict(zip(record.nodes, record.specs, strict=True))
    if record.phase == "stopping" and ending.followers_wait(gang):
        # A follower killed first would make rank 0 fail its last requests (design §3.8: rank 0 goes first).
        return dict(list(zip(record.nodes, record.specs, strict=True))[1:])
    return {}


def _up(turn: Turn, intent: Intent) -> None:
    serial = turn.record.serial + 1
    if turn.phase in ENDED:
        turn.change(conditions=(), ready_since=None, blocked_since=None)
        turn.enter(
            "pending",
            "asked for",
            intent=intent,
            serial=serial,
            desired="up",
            nodes=(),
            specs=(),
            falls=0,
            fall=None,
            budget=_full(turn),
            verdicts=(),
            left_on=(),
        )
    elif turn.phase == "stopping":
        turn.write(intent=intent, serial=serial, desired="up", ending="pending", falls=0, budget=_full(turn))
        turn.say("asked", "asked for again while it is stopping: it starts once the old ranks are gone")


def _full(turn: Turn) -> Budget:
    """A person who asks again has looked: the budget is full, the count of the day stays."""
    return Budget(recent=turn.record.budget.recent)


def _down(turn: Turn) -> None:
    serial = turn.record.serial + 1
    if turn.phase == "failed":
        reason = f"asked to stop; it had failed: {turn.record.reason}"
        turn.enter("stopped", reason, desired="down", serial=serial)
        return
    if turn.phase == "stopped":
        if turn.record.desired != "down":
            turn.write(desired="down", serial=serial)
        return
    if turn.phase == "stopping":
        if turn.record.desired != "down" or turn.record.ending != "stopped":
            turn.write(desired="down", ending="stopped", serial=serial)
        return
    ending.begin_stopping(turn, "asked to stop", ending="stopped", desired="down", serial=serial)


def _restart(turn: Turn, generation: int) -> None:
    if generation != turn.record.generation:
        return
    serial = turn.record.serial + 1
    if turn.phase in ENDED:
        _up(turn, turn.record.intent)
    elif turn.phase in RUNNING:
        turn.write(serial=serial, desired="up")
        ending.begin_recovering(turn, "asked to restart", delay_s=0.0)
    elif turn.phase == "recovering":
        turn.change(retry_at=turn.now.mono)
        turn.say("asked", "asked to restart: the back-off is skipped")
    elif turn.phase == "stopping":
        turn.write(serial=serial, desired="up", ending="pending", falls=0, budget=_full(turn))


def _advance(turn: Turn) -> None:
    """Apply the rule of the present phase until none changes the phase any more."""
    for _ in range(8):
        before = turn.phase
        match before:
            case "pending":
                preflight.pending(turn)
            case "preflight":
                preflight.preflight(turn)
            case "launching" | "loading" | "warming":
                boot.booting(turn)
            case "ready":
                serving.ready(turn)
            case "recovering":
                recovery.recovering(turn)
            case "stopping":
                recovery.stopping(turn)
            case "stopped" | "failed":
                turn.change(waiting=None)
        if turn.phase == before:
            return
    message = f"{turn.record.name}: no rest after {turn.commands}"
    raise AssertionError(message)

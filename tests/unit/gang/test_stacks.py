"""Where a gang stands that is frozen: asked before it is ended, for a moment only, and written down."""

from dataclasses import replace
from typing import Any

from sparkd.clock import Instant
from sparkd.fleet.nodes import Node
from sparkd.gang import machine
from sparkd.gang.state import Down, Gang, GangCommand, TaskDone, Tick, World, WriteIncident
from sparkd.records.defaults import DEFAULTS
from sparkd.records.report import ProbeReport, RankReport, TaskResult
from tests.unit.gang.test_mods import gang

WEDGED = ProbeReport(api_up=True, warmed=True, proof_age_s=35.0, wedged="no counter moved")
PROCESS = {"pid": 7, "title": "VLLM::Worker_TP1", "lines": ["Thread 0x1 (most recent call first):"]}


def world(before: Gang, *, contact: str = "ab") -> World:
    nodes = {}
    for spec, name in zip(before.record.specs, "ab", strict=True):
        probe = WEDGED if spec.rank == 0 else None
        report = RankReport(spec.name, "running", phase="serving", probe=probe)
        state: Any = "alive" if name in contact else "silent"
        nodes[name] = Node(
            name, f"node-{name}", greeted=True, heard=10.0, state=state, reports={report.name: report}
        )
    return World(nodes)


def at(before: Gang, now: float, event: Any = Tick(), **how: Any) -> tuple[Gang, tuple[GangCommand, ...]]:  # noqa: B008 - frozen
    return machine.step(before, event, world(before, **how), Instant(now, now))


def frozen() -> Gang:
    ready = gang("ready")
    after, _ = at(replace(ready, ready_since=0.0), 10.0)
    assert after.record.phase == "recovering"
    return after


def answer(asked: Gang, rank: int, result: dict[str, Any]) -> TaskDone:
    pending = asked.tasks[rank]
    return TaskDone(pending.node, TaskResult(pending.task.id, ok=True, result=result))


def told_in(commands: tuple[GangCommand, ...]) -> list[tuple[int, str, bool]]:
    (written,) = [one for one in commands if isinstance(one, WriteIncident)]
    return [(one.rank, one.node, one.result is not None) for one in written.stood]


def test_a_frozen_gang_is_asked_before_it_is_ended() -> None:
    asked = frozen()
    assert [(one.node, one.task.kind) for one in asked.tasks] == [("a", "stacks"), ("b", "stacks")]
    assert set(machine.wanted(asked)) == {"a", "b"}, "they are left for a moment"
    assert asked.waiting is not None
    assert asked.waiting.deadline == 10.0 + DEFAULTS.stacks_before_end_s
    one, _ = at(asked, 10.5, answer(asked, 1, {"processes": [PROCESS]}))
    assert machine.wanted(one)
    both, told = at(one, 10.6, answer(one, 0, {"processes": []}))
    assert not machine.wanted(both), "all have told: nothing more is waited for"
    assert told_in(told) == [(0, "node-a", True), (1, "node-b", True)]


def test_who_does_not_answer_delays_the_end_by_two_seconds_at_most() -> None:
    asked = frozen()
    assert machine.wanted(at(asked, 11.9)[0])
    ended, told = at(asked, 12.0)
    assert not machine.wanted(ended)
    assert [answered for _, _, answered in told_in(told)] == [False, False]


def test_whoever_asks_to_stop_does_not_wait_for_it() -> None:
    stopped, _ = at(frozen(), 10.2, Down())
    assert stopped.record.phase == "stopping"
    assert not machine.wanted(stopped)


def test_nobody_is_asked_who_has_fallen() -> None:
    ready = gang("ready")
    name = ready.record.specs[1].name
    seen = world(ready)
    report = RankReport(name, "fallen", fell="ended by signal 9")
    seen = World({**seen.nodes, "b": replace(seen.nodes["b"], reports={name: report})})
    after, _ = machine.step(ready, Tick(), seen, Instant(10.0, 10.0))
    assert after.record.phase == "recovering"
    assert not after.tasks
    assert not machine.wanted(after)

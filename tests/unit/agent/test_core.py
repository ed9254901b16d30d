"""The agent's core by table: documents in, commands out."""

from dataclasses import replace

import pytest

from sparkd.clock import Instant
from sparkd.records.document import DeploymentSerial, Document, Revision, Task
from sparkd.records.intent import Descriptor, Intent
from sparkd.records.names import RankName
from sparkd.records.rank import Address, RankSpec
from sparkd.records.report import RankState
from sparkd_agent.core import machine
from sparkd_agent.core.state import (
    Begin,
    Core,
    CoreCommand,
    CoreEvent,
    DocumentCame,
    EngineFrozen,
    Fence,
    Forget,
    GoneTold,
    HeadTried,
    Kill,
    LeaseGiven,
    MemoryShort,
    RankChanged,
    SaveFences,
    Start,
    StartFailed,
    Terminate,
)

NOW = Instant(100.0, 100.0)


def spec(deployment: str = "d", generation: int = 1, rank: int = 0) -> RankSpec:
    return RankSpec(
        name=str(RankName(deployment, generation, rank)),
        deployment=deployment,
        generation=generation,
        rank=rank,
        ranks=2,
        runtime="process",
        engine="default",
        args=(),
        env={},
        rendezvous=Address("h", 1),
        descriptor=Descriptor(deployment, Intent("p", {}), 1, generation, (), 8100),
    )


def document(revision: int, *ranks: RankSpec, term: int = 1, desired: str = "up", **more: object) -> Document:
    serials = tuple(DeploymentSerial(name, 1, desired) for name in {r.deployment for r in ranks} | {"d"})  # type: ignore[arg-type]
    body = Document(term, "holder", f"i{term}", revision, ranks=ranks, deployments=serials)
    return replace(body, **more)  # type: ignore[arg-type]


def core() -> Core:
    return Core(boot="b", holder="holder")


def play(state: Core, *events: CoreEvent) -> tuple[Core, list[CoreCommand]]:
    told: list[CoreCommand] = []
    for event in events:
        state, commands = machine.step(state, event, NOW)
        told += commands
    return state, told


def acts(commands: list[CoreCommand]) -> list[CoreCommand]:
    return [c for c in commands if not isinstance(c, SaveFences)]


def running(*specs: RankSpec) -> Core:
    state, _ = play(core(), DocumentCame(document(1, *specs)))
    state, _ = play(state, *(RankChanged(s.name, "running") for s in specs))
    return state


def test_listed_and_absent_is_started_once() -> None:
    state, told = play(core(), DocumentCame(document(1, spec())), DocumentCame(document(1, spec())))
    assert acts(told) == [Start(spec())]
    state, told = play(state, DocumentCame(document(2, spec())))
    assert acts(told) == []


def test_existing_and_not_listed_is_killed_and_forgotten_after_it_was_told() -> None:
    state, told = play(running(spec()), DocumentCame(document(2)))
    assert isinstance(told[0], Kill), "the kill comes before the write"
    assert isinstance(told[1], SaveFences)
    state, told = play(state, RankChanged(spec().name, "gone"))
    assert told == []
    state, told = play(state, GoneTold(frozenset({spec().name})))
    assert told == [Forget(spec().name)]
    assert state.ranks == {}


def test_held_is_left_alone_both_ways() -> None:
    other = spec("e", 1)
    _, told = play(running(spec()), DocumentCame(document(2, hold=True)))
    assert acts(told) == []
    _, told = play(core(), DocumentCame(document(1, spec(), other, hold=("d",))))
    assert acts(told) == [Start(other)]


@pytest.mark.parametrize(
    ("late", "word"),
    [
        (document(1, spec()), "was accepted before"),
        (document(9, spec(), term=0), "was accepted before"),
        (document(9, holder="other"), "obeys"),
        (document(9, instance="another"), "belongs to instance"),
    ],
)
def test_what_is_late_or_of_another_is_refused_and_changes_nothing(late: Document, word: str) -> None:
    state, _ = play(core(), DocumentCame(document(5)))
    after, told = play(state, DocumentCame(late))
    assert after == state
    assert len(told) == 1
    assert isinstance(told[0], Fence)
    assert word in told[0].reason


def test_a_higher_term_is_accepted_at_once() -> None:
    state, _ = play(core(), DocumentCame(document(500)))
    state, told = play(state, DocumentCame(document(1, spec(), term=2)))
    assert acts(told) == [Start(spec())]
    assert state.accepted == Revision(2, 1)


def test_a_lower_generation_is_refused_by_name_and_the_rest_applied() -> None:
    state, _ = play(running(spec("d", 5)), DocumentCame(document(2)), RankChanged(spec("d", 5).name, "gone"))
    old, fine = spec("d", 4), spec("e", 1)
    state, told = play(state, DocumentCame(document(3, old, fine)))
    assert acts(told) == [Start(fine)]
    assert state.refusals[old.name].code == "fenced"


@pytest.mark.parametrize("why", ["folder", "row"])
def test_a_name_is_started_at_most_once(why: str) -> None:
    state = core()
    name = spec().name
    if why == "folder":
        state = replace(state, folders=frozenset({name}))
    else:
        state = replace(state, rows={name: "gone"})
    state, told = play(state, DocumentCame(document(1, spec())))
    assert acts(told) == []
    assert state.refusals[name].code == "spent"


def test_an_intent_that_never_became_anything_may_be_started() -> None:
    state = replace(core(), rows={spec().name: "intent"})
    _, told = play(state, DocumentCame(document(1, spec())))
    assert acts(told) == [Start(spec())]


def test_a_rank_waits_until_no_other_exists_on_the_node() -> None:
    new = spec("d", 2)
    state, told = play(running(spec()), DocumentCame(document(2, new)))
    assert [type(c) for c in acts(told)] == [Kill]
    state, told = play(state, RankChanged(spec().name, "fallen"))
    assert told == []
    _, told = play(state, RankChanged(spec().name, "gone"))
    assert told == [Start(new)]


def test_only_a_head_that_served_and_was_asked_to_stop_gets_the_grace() -> None:
    head, follower = spec("d", 1, 0), spec("d", 1, 1)
    serving, _ = play(running(head), RankChanged(head.name, "running", served=True))
    _, told = play(serving, DocumentCame(document(2, desired="down")))
    assert isinstance(told[0], Terminate)
    assert told[0].grace_s == head.grace_s
    _, told = play(serving, DocumentCame(document(2)))
    assert isinstance(told[0], Kill), "a fall elsewhere: no grace"
    _, told = play(running(head), DocumentCame(document(2, desired="down")))
    assert isinstance(told[0], Kill), "it never served: no requests to end"
    _, told = play(running(follower), DocumentCame(document(2, desired="down")))
    assert isinstance(told[0], Kill)


def test_the_remains_of_a_fallen_rank_get_their_last_words() -> None:
    state, _ = play(running(spec()), RankChanged(spec().name, "fallen"))
    _, told = play(state, DocumentCame(document(2)))
    assert acts(told) == []


def test_nothing_is_started_before_this_run_has_a_document() -> None:
    state = replace(core(), accepted=Revision(1, 5), instance="i1", term=1)
    _, told = play(state, LeaseGiven(6.0), RankChanged("sparkd-d-g1-r0", "gone"))
    assert told == []
    _, told = play(state, DocumentCame(document(5, spec())))
    assert acts(told) == [Start(spec())], "equal is applied once per run"


def test_a_refused_start_is_shown_and_not_tried_again() -> None:
    state, _ = play(core(), DocumentCame(document(1, spec())))
    refusal = machine.Refusal(spec().name, "engine", "no such engine")
    state, told = play(state, StartFailed(refusal))
    assert told == []
    assert state.refusals == {spec().name: refusal}
    assert state.ranks == {}


def test_tasks_begin_once() -> None:
    task = Task("t1", "port", {}, 5.0)
    state, told = play(core(), DocumentCame(document(1, tasks=(task,))))
    assert Begin(task) in told
    _, told = play(state, DocumentCame(document(2, tasks=(task,))))
    assert Begin(task) not in told


def test_a_frozen_engine_is_ended_here_only_without_a_coordinator() -> None:
    state, _ = play(running(spec()), LeaseGiven(6.0))
    _, told = machine.step(state, EngineFrozen(spec().name, "no answer"), Instant(103.0, 0.0))
    assert told == ()
    state, told = machine.step(state, EngineFrozen(spec().name, "no answer"), Instant(107.0, 0.0))
    assert isinstance(told[0], Kill)
    assert "no answer" in told[0].reason


@pytest.mark.parametrize("coordinator", [True, False], ids=["with-coordinator", "without"])
def test_a_follower_without_its_head_is_ended_here_only_without_a_coordinator(coordinator: bool) -> None:
    """vLLM's follower never notices a dead head, and would hold its memory for ever."""
    state, _ = play(running(spec()), LeaseGiven(6.0))
    for second in range(107, 180, 5):
        if coordinator:
            state, _ = machine.step(state, LeaseGiven(6.0), Instant(second, 0.0))
        state, told = machine.step(state, HeadTried(spec().name, reached=False), Instant(second, 0.0))
        ended = bool(told)
        assert ended == (not coordinator and second >= 167), second
        if ended:
            assert isinstance(told[0], Kill)
            assert "rank 0 has taken no connection for 60 s" in told[0].reason
            return


def test_a_head_that_answers_once_is_there_and_an_earlier_absence_does_not_count() -> None:
    state, _ = play(running(spec()), LeaseGiven(6.0))
    state, _ = machine.step(state, HeadTried(spec().name, reached=False), Instant(107.0, 0.0))
    state, _ = machine.step(state, HeadTried(spec().name, reached=True), Instant(150.0, 0.0))
    state, told = machine.step(state, HeadTried(spec().name, reached=False), Instant(170.0, 0.0))
    assert told == ()
    state, _ = machine.step(state, LeaseGiven(6.0), Instant(200.0, 0.0))
    state, told = machine.step(state, HeadTried(spec().name, reached=False), Instant(240.0, 0.0))
    assert told == ()


def test_a_node_that_is_short_of_memory_ends_its_rank_once_whatever_the_coordinator_says() -> None:
    state, _ = play(running(spec()), LeaseGiven(6.0))
    short = MemoryShort(spec().name, "MemAvailable 0.8 GiB")
    state, told = play(state, short, short)
    assert told == [Kill(spec().name, "MemAvailable 0.8 GiB")]
    _, told = play(state, DocumentCame(document(2)))  # the coordinator's own word comes too late
    assert acts(told) == []


@pytest.mark.parametrize("state", ["fallen", "gone"])
def test_what_has_ended_is_not_ended_for_its_memory(state: RankState) -> None:
    after, _ = play(running(spec()), RankChanged(spec().name, state))
    _, told = play(after, MemoryShort(spec().name, "x"), MemoryShort("sparkd-other-g1-r0", "x"))
    assert told == []

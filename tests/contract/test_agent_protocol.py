"""Agent protocol v1 (design §11), each side against a counterpart that a test writes by hand."""

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sparkd.profile.lookup import load_profile
from sparkd.profile.merge import resolve
from sparkd.records.defaults import DEFAULTS
from sparkd.records.document import DeploymentSerial, Document, Revision, Task
from sparkd.records.memory import Memory
from sparkd.records.rank import RankSpec
from sparkd.records.report import Exit, NodeFacts, RankReport, Sample, TaskResult, Welcome
from sparkd_agent.procfs import ProcFs
from tests.bed.agent_process import HOLDER, AgentProcess, ScriptedCoordinator, agent_process, until
from tests.bed.coordinator import PATIENCE_S, Answer, Coordinator, coordinator
from tests.bed.fake_agent import FakeAgent
from tests.bed.ranks import rank_spec

# The coordinator, asked by an agent of the test. ---------------------------------------------------------

NODES = ("n1", "n2")
POLL_S = 0.4


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Coordinator]:
    with coordinator(tmp_path, NODES, document_poll_s=POLL_S) as one:
        yield one


def refused(answer: Answer, code: str, status: int = 409) -> str:
    assert (answer.status, answer.kind, answer.json["code"]) == (status, "application/problem+json", code)
    return str(answer.json["detail"])


def greeted(one: Coordinator) -> tuple[FakeAgent, FakeAgent]:
    first, second = (FakeAgent(one, node) for node in NODES)
    assert (first.hello().status, second.hello().status) == (200, 200)
    return first, second


def document(agent: FakeAgent, after: str = "0.0") -> Document:
    answer = agent.document(after)
    assert answer.status == 200, answer.body
    return msgspec.json.decode(answer.body, type=Document)


def put(one: Coordinator, name: str) -> Answer:
    intent = resolve(load_profile("tiny")).intent
    return one.ask("PUT", f"/v1/deployments/{name}", {"intent": msgspec.to_builtins(intent)})


def test_without_a_hello_nothing_is_served(served: Coordinator) -> None:
    agent = FakeAgent(served, "n1")
    refused(agent.report(), "needs-hello")
    refused(agent.document(), "needs-hello")
    welcome = msgspec.json.decode(agent.hello().body, type=Welcome)
    assert (welcome.holder, welcome.lease_s, welcome.beat_s) == (served.holder, 6.0, 1.0)
    assert agent.report().status == 200
    assert document(agent).instance == welcome.instance


def test_what_an_agent_may_and_cannot_do_is_shown_to_people(served: Coordinator) -> None:
    limit = "it cannot read the kernel's log (no CAP_SYSLOG): run it as root"
    facts = NodeFacts(
        "n1", "n1", "127.0.0.1", "127.0.0.1", runtimes=("process",), privileges=("kill",), limits=(limit,)
    )
    FakeAgent(served, "n1").hello(facts=facts)
    node = next(one for one in served.ask("GET", "/v1/nodes").json if one["id"] == "n1")
    assert (node["runtimes"], node["privileges"], node["limits"]) == (["process"], ["kill"], [limit])


def test_an_old_run_is_not_heard_any_more(served: Coordinator) -> None:
    old, new = FakeAgent(served, "n1", "run-1"), FakeAgent(served, "n1", "run-2")
    old.hello()
    assert old.report().status == 200
    new.hello()
    assert "run-1" in refused(old.report(), "needs-hello")
    refused(old.document(), "needs-hello")
    assert new.report().status == 200


def test_another_life_of_the_coordinator_wants_a_hello(served: Coordinator) -> None:
    agent = FakeAgent(served, "n1")
    first = msgspec.json.decode(agent.hello().body, type=Welcome)
    served.end(signal.SIGKILL)
    served.start()
    refused(agent.report(), "needs-hello")
    second = msgspec.json.decode(agent.hello().body, type=Welcome)
    assert second.term == first.term + 1
    assert second.instance != first.instance
    assert second.holder == first.holder


def test_until_all_have_said_hello_documents_only_hold(served: Coordinator) -> None:
    first, second = FakeAgent(served, "n1"), FakeAgent(served, "n2")
    first.hello()
    held = document(first)
    assert held.hold is True
    second.hello()
    free = document(first, str(held.order))
    assert not free.hold
    assert free.order > held.order


def test_a_poll_is_answered_at_once_or_after_its_time_or_on_a_change(served: Coordinator) -> None:
    first, _ = greeted(served)
    newest = document(first)
    assert document(first, "0.0") == newest
    begun = time.monotonic()
    nothing = first.document(str(newest.order))
    assert (nothing.status, nothing.body) == (204, b"")
    assert time.monotonic() - begun >= POLL_S
    # A report tells of the newest revision too, so that a stuck poll hides nothing.
    assert msgspec.convert(first.report().json["newest"], Revision) == newest.order


def test_a_waiting_poll_wakes_when_its_document_changes(tmp_path: Path) -> None:
    with coordinator(tmp_path, NODES, document_poll_s=10 * PATIENCE_S) as one:
        agents = greeted(one)
        newest = [document(agent) for agent in agents]
        woken: dict[str, Document] = {}

        def poll(agent: FakeAgent, after: Revision) -> None:
            woken[agent.node] = document(agent, str(after))

        polls = [
            threading.Thread(target=poll, args=(agent, old.order), daemon=True)
            for agent, old in zip(agents, newest, strict=True)
        ]
        for thread in polls:
            thread.start()
        assert put(one, "d").status == 201
        for thread in polls:
            thread.join(PATIENCE_S)
        assert {task.kind for task in woken["n1"].tasks} == {"facts", "files", "port"}
        assert {task.kind for task in woken["n2"].tasks} == {"facts", "files"}
        assert all(
            woken[old_agent.node].order > old.order for old_agent, old in zip(agents, newest, strict=True)
        )


def test_a_waiting_poll_is_answered_when_the_coordinator_stops(tmp_path: Path) -> None:
    with coordinator(tmp_path, NODES, document_poll_s=10 * PATIENCE_S) as one:
        agent, _ = greeted(one)
        after = str(document(agent).order)
        answers: list[int] = []
        poll = threading.Thread(target=lambda: answers.append(agent.document(after).status), daemon=True)
        poll.start()
        # The poll has been received once the other requests on the same loop are answered after it.
        until(lambda: agent.report().status == 200 and poll.is_alive(), "the poll to wait")
        assert one.end() == 0
        poll.join(PATIENCE_S)
        assert answers in ([204], [])


def results_for(found: Document) -> tuple[TaskResult, ...]:
    good: dict[str, Callable[[Task], dict[str, Any]]] = {
        "facts": lambda _: {"wall": 1.0},
        "files": lambda _: {"model": {"path": "/models/tiny", "bytes": 1}},
        "port": lambda task: {"ports": [{**port, "free": True} for port in task.args["ports"]]},
    }
    return tuple(TaskResult(task.id, ok=True, result=good[task.kind](task)) for task in found.tasks)


def test_a_seq_that_goes_back_loses_its_state_but_not_its_news(served: Coordinator) -> None:
    """A report that was overtaken on the network: its beat is old, what it says once is still news."""
    first, second = greeted(served)
    put(served, "d")
    high = 1000
    for agent in (first, second):
        sample = Sample(Memory(3, 2, 1))
        assert agent.report(caller=agent.caller(seq=high), sample=sample).status == 200
    for agent in (first, second):
        stale = agent.report(
            caller=agent.caller(seq=high - 1),
            sample=Sample(Memory(30, 20, 10)),
            results=results_for(document(agent)),
        )
        assert stale.json["acked"] == high - 1
    # Its task results were taken: the preflight is over, ranks are listed.
    (spec,) = document(second).ranks
    # Its sample was not.
    nodes = served.ask("GET", "/v1/nodes").json
    assert [node["memory"]["total"] for node in nodes] == [3, 3]

    running = RankReport(spec.name, "running", pid=77)
    second.report(caller=second.caller(seq=high + 1), ranks=(running,))
    exit_ = Exit(spec.name, "VLLM::Worker_TP1", 78, None, 9, "shim", time.time(), time.monotonic())
    for _ in range(2):
        assert second.report(caller=second.caller(seq=high), exits=(exit_,)).status == 200
    shown = served.ask("GET", "/v1/deployments/d/ranks").json[1]
    assert (shown["pid"], shown["phase"]) == (77, "launching")
    events = served.ask("GET", "/v1/events?follow=false&deployment=d").json
    assert ["VLLM::Worker_TP1 (pid 78)" in e["reason"] for e in events if e["kind"] == "exit"] == [True]


def test_who_may_speak(served: Coordinator) -> None:
    stranger = FakeAgent(served, "n3")
    assert "n3 is not enrolled" in refused(stranger.hello(), "refused")
    agent = FakeAgent(served, "n1")
    for protocol in (-1, 2):
        assert f"protocol {protocol}" in refused(
            agent.hello(caller=agent.caller(protocol=protocol)), "refused"
        )
    assert agent.hello(caller=agent.caller(protocol=0)).status == 200, "the one before is served"
    assert agent.hello().status == 200
    refused(agent.report(caller=agent.caller(protocol=2)), "refused")
    refused(agent.document(caller=agent.caller(protocol=2)), "refused")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"caller": {}}', b'{"caller": 1}', b"\xff\xfe"])
def test_what_is_no_hello_or_report_is_refused(served: Coordinator, body: bytes) -> None:
    for path in ("hello", "report"):
        refused(served.ask_as_agent("POST", f"/agent/v1/{path}", body), "usage", 400)


@pytest.mark.parametrize("query", ["", "?after=1.1", "?after=x&node=n1&boot=b&run=r&seq=1&protocol=1"])
def test_what_is_no_poll_is_refused(served: Coordinator, query: str) -> None:
    refused(served.ask_as_agent("GET", f"/agent/v1/document{query}"), "usage", 400)


@pytest.mark.parametrize("token", [None, "another"])
def test_agents_show_a_token_too(served: Coordinator, token: str | None) -> None:
    for method, path in (("POST", "hello"), ("POST", "report"), ("GET", "document")):
        refused(served.ask_as_agent(method, f"/agent/v1/{path}", token=token), "unauthorized", 401)


def test_a_coordinator_that_its_nodes_do_not_obey_stops(served: Coordinator) -> None:
    FakeAgent(served, "n1").hello(holder="another holder")
    assert served.process is not None
    assert served.process.wait(PATIENCE_S) == 1
    assert "obeys holder another holder" in served.log


def test_a_higher_term_is_outbid_unless_its_lease_lives(served: Coordinator) -> None:
    first, second = greeted(served)
    before = document(first)
    answer = second.hello(highest_term=before.term + 5, highest_instance="another", lease_live=False)
    assert msgspec.json.decode(answer.body, type=Welcome).term == before.term + 6
    refused(first.report(), "needs-hello")
    first.hello()
    after = document(first)
    assert (after.term, after.order > before.order) == (before.term + 6, True)

    second.hello(highest_term=after.term + 1, highest_instance="another", lease_live=True)
    assert served.process is not None
    assert served.process.wait(PATIENCE_S) == 1
    assert f"a coordinator of term {after.term + 1} holds node n2" in served.log


# The agent, told things by a coordinator of the test. ----------------------------------------------------


@pytest.fixture
def script() -> Iterator[ScriptedCoordinator]:
    with ScriptedCoordinator() as one:
        yield one


@pytest.fixture
def agent(tmp_path: Path, script: ScriptedCoordinator) -> Iterator[AgentProcess]:
    with agent_process(tmp_path, script.url) as one:
        until(lambda: script.reports, "the first report")
        yield one


def spec(generation: int = 1, deployment: str = "t") -> RankSpec:
    return rank_spec(f"sparkd-{deployment}-g{generation}-r0", deployment=deployment, generation=generation)


def started(script: ScriptedCoordinator, revision: int, one: RankSpec) -> int:
    script.publish(revision, ranks=(one,))
    return script.rank(one.name, "running").pid or 0


def test_a_hello_says_who_is_there_and_is_tried_again(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with agent_process(tmp_path, f"http://127.0.0.1:{port}") as agent:
        until(lambda: "no coordinator" in agent.log, "the agent to have tried in vain")
        with ScriptedCoordinator(port) as script:
            script.broken["hello"] = 503
            until(lambda: len(script.hellos) >= 3, "hellos again")
            assert not script.polls
            assert not script.reports
            moments = [at for at, _ in script.asked_at]
            assert max(after - before for before, after in pairwise(moments)) < 10 * DEFAULTS.hello_retry_s
            script.broken.clear()
            until(lambda: script.polls and script.reports, "poll and report after a hello")
        hello = script.hellos[-1]
        assert (hello.caller.node, hello.holder, hello.facts.runtimes) == ("node-1", HOLDER, ("process",))
        assert hello.facts.engines[0].name == "default"
        assert (hello.ledger, hello.ranks, hello.highest_term) == ((), (), 0)
        seqs = [one.caller.seq for one in (*script.hellos, *script.reports)]
        assert len(set(seqs)) == len(seqs)
        assert script.polls[0]["after"] == "0.0"


@pytest.mark.parametrize("what", ["hello", "document", "report"])
@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"term": "x"}', b""])
def test_an_answer_that_is_none_does_not_end_the_agent(
    tmp_path: Path, script: ScriptedCoordinator, what: str, body: bytes
) -> None:
    script.garbage[what] = body
    with agent_process(tmp_path, script.url) as agent:
        until(lambda: len(script.hellos) >= 2, "a second hello")
        assert "the answer is not a" in agent.log
        script.garbage.clear()
        until(lambda: any(report.rtt_s for report in script.reports[-1:]), "an ordinary life")
        assert agent.pid


def test_nothing_listens(agent: AgentProcess, script: ScriptedCoordinator) -> None:
    """The agent only dials out; a rank's own sockets are another matter."""
    started(script, 1, spec())
    states = tcp_states(agent.pid)
    assert "0A" not in states, "no TCP socket of the agent may be in state LISTEN"
    assert "01" in states, "its connections to the coordinator are seen"


def tcp_states(pid: int) -> set[str]:
    procfs = ProcFs()
    folder = Path(f"/proc/{pid}/fd")
    inodes = {procfs.descriptor_target(pid, int(fd.name)) for fd in folder.iterdir()}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if f"socket:[{fields[9]}]" in inodes:
                found.add(fields[3])
    return found


def test_a_rank_is_started_exactly_once(agent: AgentProcess, script: ScriptedCoordinator) -> None:
    one = spec()
    pid = started(script, 1, one)
    for revision in (1, 2, 2, 3):
        script.publish(revision, ranks=(one,))
        script.taken()
    assert [rank.pid for rank in script.later().ranks] == [pid]
    assert len(agent.rank_pids()) == 1

    script.publish(4)
    script.rank(one.name, "gone")
    assert not agent.rank_pids()
    script.publish(5, ranks=(one,))
    assert "started before" in script.refusal(one.name, "spent")
    script.later()
    assert not agent.rank_pids()


def test_a_name_stays_spent_over_a_restart_of_the_agent(
    agent: AgentProcess, script: ScriptedCoordinator
) -> None:
    one = spec()
    started(script, 1, one)
    script.publish(2)
    script.rank(one.name, "gone")
    runs = {hello.caller.run for hello in script.hellos}
    agent.kill()
    polls = len(script.polls)
    agent.start()
    until(lambda: len(script.polls) > polls, "a poll of the new run")
    assert script.hellos[-1].caller.run not in runs
    assert script.polls[-1]["after"] == "0.0", "a new run has received nothing yet"
    assert script.hellos[-1].accepted == Revision(1, 2)
    script.publish(3, ranks=(one,))
    script.refusal(one.name, "spent")
    assert not agent.rank_pids()


def test_a_lower_document_is_fenced(agent: AgentProcess, script: ScriptedCoordinator) -> None:
    one = spec()
    pid = started(script, 5, one)
    script.publish(4)
    script.taken()
    script.welcome = Welcome(2, HOLDER, "instance-2", 6.0, 1.0)
    script.publish(1, term=2, instance="instance-2", ranks=(one,))
    script.applied(Revision(2, 1))
    script.publish(9)
    script.taken()
    # One more by somebody who claims the same term.
    script.publish(9, term=2, instance="instance-3")
    script.taken()
    last = script.later()
    assert (last.applied, [rank.pid for rank in last.ranks]) == (Revision(2, 1), [pid])
    told = " ".join(script.told("fenced"))
    for reason in ("it is 1.4; 1.5 was accepted", "it is 1.9; 2.1 was accepted", "not instance-3"):
        assert reason in told


def test_another_holder_is_ignored_and_told_whom_this_node_obeys(
    agent: AgentProcess, script: ScriptedCoordinator
) -> None:
    one = spec()
    pid = started(script, 1, one)
    hellos = len(script.hellos)
    script.publish(7, term=9, holder="another", instance="x")
    until(lambda: len(script.hellos) > hellos, "a hello after a refused document")
    assert (script.hellos[-1].holder, script.hellos[-1].highest_term) == (HOLDER, 1)
    last = script.later()
    assert (last.applied, [rank.pid for rank in last.ranks]) == (Revision(1, 1), [pid])
    script.broken["report"] = 409
    hellos = len(script.hellos)
    until(lambda: len(script.hellos) > hellos, "a hello after a 409")
    script.broken.clear()
    assert (script.hellos[-1].holder, script.hellos[-1].highest_term) == (HOLDER, 1)


def test_a_superseded_coordinator_is_told_so_at_once(
    agent: AgentProcess, script: ScriptedCoordinator
) -> None:
    script.applied(script.publish(3, term=2, instance="instance-2").order)
    hellos = len(script.hellos)
    script.publish(9)
    until(lambda: len(script.hellos) > hellos, "a hello that names the higher term")
    assert (script.hellos[-1].highest_term, script.hellos[-1].highest_instance) == (2, "instance-2")
    # It is told once for each document, not as fast as it answers.
    script.later(2)
    assert len(script.hellos) == hellos + 1


def test_a_stuck_poll_is_given_up(agent: AgentProcess, script: ScriptedCoordinator) -> None:
    hellos, polls = len(script.hellos), len(script.polls)
    script.newest = Revision(1, 5)
    until(lambda: len(script.hellos) > hellos, "a hello, although reports are answered")
    script.newest = None
    until(lambda: len(script.polls) > polls, "another poll")
    assert "has document 1.5" in agent.log


def test_an_equal_document_is_applied_once(agent: AgentProcess, script: ScriptedCoordinator) -> None:
    one = spec()
    pid = started(script, 1, one)
    script.publish(1)
    script.taken()
    assert [rank.pid for rank in script.later().ranks] == [pid]
    assert not script.told("fenced")


@pytest.mark.parametrize("hold", [True, ("t",)])
def test_what_is_held_is_left_as_it_is(
    agent: AgentProcess, script: ScriptedCoordinator, hold: bool | tuple[str, ...]
) -> None:
    one = spec()
    held = script.publish(1, hold=hold, ranks=(one,))
    script.applied(held.order)
    assert not script.later().ranks
    pid = started(script, 2, one)
    script.applied(script.publish(3, hold=hold).order)
    assert [rank.pid for rank in script.later().ranks] == [pid]
    script.publish(4, hold=("other",))
    script.rank(one.name, "gone")


def test_a_rank_below_the_generation_is_refused_and_the_rest_applied(
    agent: AgentProcess, script: ScriptedCoordinator
) -> None:
    started(script, 1, spec(3))
    script.publish(2)
    script.rank(spec(3).name, "gone")
    port = Task("ask", "port", {"ports": [{"port": 1, "for": "api"}]}, 5.0)
    script.publish(3, ranks=(spec(2), spec(1, "other")), tasks=(port,))
    assert "generation 3 of t was seen before" in script.refusal(spec(2).name, "fenced")
    assert script.result("ask").ok
    script.rank(spec(1, "other").name, "running")


def test_a_rank_waits_for_the_end_of_another(agent: AgentProcess, script: ScriptedCoordinator) -> None:
    """A node runs ranks of one deployment at a time, whatever a document lists."""
    first, second = spec(), spec(1, "other")
    started(script, 1, first)
    script.publish(2, ranks=(first, second))
    script.applied(Revision(1, 2))
    assert [rank.name for rank in script.later().ranks] == [first.name]
    script.publish(3, ranks=(second,))
    script.rank(second.name, "running")
    seen = [{rank.name for rank in one.ranks if rank.state == "running"} for one in script.reports]
    assert {first.name, second.name} not in seen


def test_news_waits_until_it_is_acknowledged(agent: AgentProcess, script: ScriptedCoordinator) -> None:
    one = spec()
    started(script, 1, one)
    script.broken["report"] = 500
    agent.stop_ranks.touch()

    def exits() -> list[Exit]:
        return [exit_ for report in tuple(script.reports) for exit_ in report.exits]

    until(lambda: len(exits()) >= 2, "the exit to be told again")
    assert {(e.rank, e.process, e.code) for e in exits()} == {(one.name, "leader", 7)}
    # Not even a death of the agent loses it.
    agent.kill()
    before = len(exits())
    agent.start()
    until(lambda: len(exits()) > before, "the new run to tell it")
    script.broken.clear()
    until(lambda: script.reports[-1].exits == (), "the exit to be acknowledged")
    assert script.later(3).exits == ()


def test_a_question_is_answered_once(agent: AgentProcess, script: ScriptedCoordinator) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ask = Task("q1", "port", {"ports": [{"port": port, "for": "api"}]}, 5.0)
        script.publish(1, tasks=(ask,))
        (entry,) = script.result("q1").result["ports"]
        assert (entry["free"], entry["for"]) == (False, "api")
        assert "pytest" in entry["owner"] or "python" in entry["owner"]
    unknown = Task("q2", "probe", {}, 5.0)
    script.publish(2, tasks=(ask, unknown))
    assert not script.result("q2").ok
    script.later()
    answers = [one.id for report in script.reports for one in report.results]
    assert answers.count("q1") == answers.count("q2") == 1


def test_what_every_agent_remembers_comes_back_in_its_hello(
    agent: AgentProcess, script: ScriptedCoordinator
) -> None:
    serials = (DeploymentSerial("t", 4, "up"), DeploymentSerial("old", 9, "down", removed=True))
    script.publish(1, ranks=(spec(2),), deployments=serials)
    script.rank(spec(2).name, "running")
    agent.kill()
    hellos = len(script.hellos)
    agent.start()
    until(lambda: len(script.hellos) > hellos, "a hello of the new run")
    hello = script.hellos[-1]
    assert (set(hello.deployments), hello.generations) == (set(serials), {"t": 2})
    assert [(row.spec.name, row.state) for row in hello.ledger] == [(spec(2).name, "started")]
    assert [(rank.name, rank.state) for rank in hello.ranks] == [(spec(2).name, "running")]

"""The REST API against a real coordinator process (design §11): every route, and every way to be refused."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sparkd.profile.lookup import load_profile
from sparkd.profile.merge import resolve
from sparkd.records.answer import CommandAnswer
from sparkd.records.plan import Plan
from sparkd.records.status import DeploymentStatus, NodeStatus, RankStatus, Status
from tests.bed.coordinator import PATIENCE_S, Answer, Coordinator, coordinator, send
from tests.bed.fake_agent import PlayedNode
from tests.bed.ports import free_port

NODES = ("n1", "n2")
LIMIT = 64 * 1024
"""Of a body: small, so that a test can go over it quickly. A chunk of an upload is as large."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    """One coordinator and two nodes that play along, for all tests that leave them as they are."""
    with coordinator(tmp_path_factory.mktemp("rest"), NODES) as one:
        nodes = [PlayedNode(one, node) for node in NODES]
        try:
            until_status(one, lambda: one.ask("DELETE", "/v1/deployments/absent").status == 404)
            yield one
        finally:
            for node in nodes:
                node.stop()


@pytest.fixture(scope="module")
def ready(running: Coordinator) -> str:
    """A deployment that is ready; tests only look at it."""
    up(running, "tiny")
    until_phase(running, "tiny", "ready")
    return "tiny"


def until_status(one: Coordinator, look: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not look():
        assert time.monotonic() < end, one.ask("GET", "/v1/status").json
        time.sleep(0.02)


def until_phase(one: Coordinator, name: str, phase: str) -> Any:
    until_status(one, lambda: one.ask("GET", f"/v1/deployments/{name}").json["phase"] == phase)
    return one.ask("GET", f"/v1/deployments/{name}").json


def wish(*sets: str) -> dict[str, Any]:
    return {"intent": msgspec.to_builtins(resolve(load_profile("tiny"), sets=sets).intent)}


def up(one: Coordinator, name: str, *sets: str) -> Answer:
    return one.ask("PUT", f"/v1/deployments/{name}", wish(*sets))


def problem(answer: Answer, status: int, code: str) -> Any:
    """RFC 9457: its media type, and its members."""
    assert (answer.status, answer.kind) == (status, "application/problem+json"), answer.body
    body = answer.json
    assert (body["status"], body["code"], body["type"]) == (status, code, f"urn:sparkd:{code}")
    assert body["title"]
    assert body["detail"]
    return body


# Who may ask. -------------------------------------------------------------------------------------------

ROUTES = [
    ("GET", "/v1/status"),
    ("GET", "/v1/nodes"),
    ("GET", "/v1/deployments"),
    ("GET", "/v1/deployments/tiny"),
    ("GET", "/v1/deployments/tiny/ready"),
    ("GET", "/v1/deployments/tiny/ranks"),
    ("GET", "/v1/deployments/tiny/logs"),
    ("GET", "/v1/deployments/tiny/incidents"),
    ("GET", "/v1/deployments/tiny/stacks"),
    ("GET", "/v1/events"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("PUT", "/v1/deployments/tiny"),
    ("DELETE", "/v1/deployments/tiny"),
    ("POST", "/v1/deployments/tiny/restart"),
    ("POST", "/v1/plan"),
    ("POST", "/v1/preflight"),
    ("GET", "/no/such/route"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("token", [None, "another", "token-of-test", "token-of-tests1"])
def test_without_the_token_nothing_is_said(
    running: Coordinator, method: str, path: str, token: str | None
) -> None:
    problem(running.ask(method, path, token=token), 401, "unauthorized")


def test_the_token_counts_as_a_bearer_only(running: Coordinator) -> None:
    for value in (running.token, f"Basic {running.token}", f"bearer{running.token}"):
        answer = running.ask("GET", "/v1/status", token=None, headers={"authorization": value})
        problem(answer, 401, "unauthorized")


def test_health_needs_no_token(running: Coordinator) -> None:
    answer = running.ask("GET", "/healthz", token=None)
    assert (answer.status, answer.json) == (200, {"status": "ok"})


# What may be asked. -------------------------------------------------------------------------------------


def test_a_body_over_the_bound_is_refused_unread(running: Coordinator) -> None:
    answer = running.ask("PUT", "/v1/deployments/x", headers={"content-length": str(1 << 40)}, body=b"")
    problem(answer, 413, "too-large")


@pytest.mark.parametrize("path", ["/v1/deployments/x", "/agent/v1/hello"])
def test_a_body_without_a_length_is_bounded_too(tmp_path: Path, path: str) -> None:
    with coordinator(tmp_path, body_bytes=LIMIT) as one:
        chunks = (b" " * LIMIT for _ in range(3))
        to_agents = path.startswith("/agent")
        answer = send(
            one.agents if to_agents else one.rest,
            "POST" if to_agents else "PUT",
            path,
            token=one.token,
            body=chunks,
            headers={"content-type": "application/json"},
        )
        problem(answer, 413, "too-large")
        assert one.ask("GET", "/healthz").status == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/deployments/absent", 404, "not-found"),
        ("GET", "/v1/deployments/absent/ready", 404, "not-found"),
        ("GET", "/v1/deployments/absent/ranks", 404, "not-found"),
        ("GET", "/v1/deployments/absent/logs", 404, "not-found"),
        ("GET", "/v1/deployments/absent/incidents", 404, "not-found"),
        ("GET", "/v1/deployments/absent/stacks", 404, "not-found"),
        ("DELETE", "/v1/deployments/absent", 404, "not-found"),
        ("GET", "/v1/deployments/..%2Fabsent", 404, "not-found"),
        ("GET", "/v1/nowhere", 404, "not-found"),
        ("GET", "/", 404, "not-found"),
        ("GET", "/docs", 404, "not-found"),
        ("POST", "/v1/status", 405, "usage"),
        ("PATCH", "/v1/deployments/tiny", 405, "usage"),
        ("GET", "/v1/events?follow=false&limit=x", 422, "usage"),
        ("GET", "/v1/events?follow=false&limit=-1", 422, "usage"),
        ("GET", "/v1/deployments/absent/logs?lines=0", 422, "usage"),
        ("GET", "/v1/deployments/absent/logs?rank=first", 422, "usage"),
    ],
)
def test_what_is_not_there(running: Coordinator, method: str, path: str, status: int, code: str) -> None:
    body = problem(running.ask(method, path), status, code)
    if status == 422:
        assert body["problems"]


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        (b"", "body"),
        (b"{", "body"),
        ({}, "intent"),
        ({"intent": {"profile_name": "x"}}, "intent.profile"),
        ({"intent": {"profile_name": "x", "profile": 3}}, "intent.profile"),
    ],
)
def test_an_intent_that_is_none(running: Coordinator, body: object, wrong: str) -> None:
    headers = {"content-type": "application/json"}
    found = problem(running.ask("PUT", "/v1/deployments/x", body, headers=headers), 422, "usage")
    assert any(wrong in text for text in found["problems"])


def test_an_invalid_profile_is_refused_with_every_problem(running: Coordinator) -> None:
    intent = wish()
    intent["intent"]["profile"]["layout"] = {"tp": 0, "pq": 1}
    for method, path, body in (
        ("PUT", "/v1/deployments/x", intent),
        ("POST", "/v1/plan", {"name": "x", **intent}),
    ):
        found = problem(running.ask(method, path, body), 422, "profile-invalid")
        assert any("layout.tp" in text for text in found["problems"])
        assert any("pq" in text for text in found["problems"])
    problem(running.ask("GET", "/v1/deployments/x"), 404, "not-found")


@pytest.mark.parametrize("name", ["Tiny", "a_b", "-a", "a" * 41, "%C3%A4"])
def test_a_name_that_cannot_be_one(running: Coordinator, name: str) -> None:
    problem(up(running, name), 400, "usage")


# Commands. ----------------------------------------------------------------------------------------------


def test_up_is_idempotent_by_name_and_intent(running: Coordinator, ready: str) -> None:
    before = running.ask("GET", f"/v1/deployments/{ready}").json
    again = up(running, ready)
    answer = msgspec.json.decode(again.body, type=CommandAnswer)
    assert (again.status, answer.outcome, answer.recorded_on, answer.nodes) == (200, "running", 2, 2)
    assert answer.deployment.generation == before["generation"]
    found = problem(up(running, ready, "engine.args.max-model-len=256"), 409, "intent-differs")
    assert [line for line in found["differences"] if "max-model-len" in line and "256" in line]
    assert running.ask("GET", f"/v1/deployments/{ready}").json["generation"] == before["generation"]


def test_the_life_of_a_deployment(tmp_path: Path) -> None:
    with coordinator(tmp_path, NODES) as one:
        problem(up(one, "early"), 503, "starting")
        nodes = [PlayedNode(one, node) for node in NODES]
        made = up(one, "d", "restart.backoff_s=0.01")
        assert (made.status, made.json["outcome"]) == (201, "created")
        first = until_phase(one, "d", "ready")["generation"]

        problem(one.ask("POST", "/v1/deployments/d/restart", {"generation": first + 1}), 409, "conflict")
        problem(one.ask("POST", "/v1/deployments/d/restart", {}), 422, "usage")
        restarted = one.ask("POST", "/v1/deployments/d/restart", {"generation": first})
        assert (restarted.status, restarted.json["outcome"]) == (200, "restarting")
        until_status(one, lambda: one.ask("GET", "/v1/deployments/d").json["generation"] == first + 1)
        until_phase(one, "d", "ready")
        # The same request once more, as a client sends it that got no answer: nothing happens.
        assert one.ask("POST", "/v1/deployments/d/restart", {"generation": first}).status == 200
        assert one.ask("GET", "/v1/deployments/d").json["phase"] == "ready"
        assert one.ask("GET", "/v1/deployments/d").json["generation"] == first + 1

        gone = one.ask("DELETE", "/v1/deployments/d")
        assert (gone.status, gone.json["deployment"]["desired"]) == (200, "down")
        until_phase(one, "d", "stopped")
        again = one.ask("DELETE", "/v1/deployments/d")
        assert (again.status, again.json["outcome"]) == (200, "stopped")
        problem(one.ask("POST", "/v1/deployments/d/restart", {"generation": first + 1}), 409, "conflict")
        not_ready = one.ask("GET", "/v1/deployments/d/ready")
        assert (not_ready.status, not_ready.json["phase"]) == (503, "stopped")
        assert not_ready.json["reason"]

        # Started again with another intent, which a stopped one takes.
        other = up(one, "d", "engine.args.max-model-len=256")
        assert (other.status, other.json["outcome"]) == (200, "started")
        until_phase(one, "d", "ready")
        for node in nodes:
            node.stop()


def test_an_api_key_is_shown_nowhere(tmp_path: Path) -> None:
    """Off loopback rank 0 gets a key: in its environment and a 0600 file, in nothing that is read or kept."""
    with coordinator(tmp_path, NODES) as one:
        nodes = [PlayedNode(one, node, address=f"192.0.2.{at}") for at, node in enumerate(NODES, start=1)]
        until_status(one, lambda: one.ask("DELETE", "/v1/deployments/absent").status == 404)
        up(one, "d")
        endpoint = until_phase(one, "d", "ready")["endpoint"]
        (file,) = (one.state / "keys").iterdir()
        key = file.read_text().strip()
        assert (file.stat().st_mode & 0o777, len(key) > 32) == (0o600, True)
        assert endpoint["base_url"].startswith("http://192.0.2.1:")
        secrets = [spec.secrets for node in nodes for spec in (node.document.ranks if node.document else ())]
        assert secrets == [{"VLLM_API_KEY": key}, {}]
        reads = [path for method, path in ROUTES if method == "GET" and "events" not in path]
        told = [one.ask("GET", path.replace("tiny", "d")).body for path in reads]
        told.append(one.ask("GET", "/v1/events?follow=false").body)
        told.append(one.ask("POST", "/v1/plan", {"name": "d", **wish()}).body)
        told.append(up(one, "d").body)
        for node in nodes:
            node.stop()
        assert one.end() == 0
        told += [path.read_bytes() for path in one.state.glob("coordinator.sqlite*")]
        told.append(one.log.encode())
        assert [text for text in told if key.encode() in text] == []


# Reads. -------------------------------------------------------------------------------------------------


def test_every_read_is_its_record(running: Coordinator, ready: str) -> None:
    for path, kind in (
        ("/v1/status", Status),
        ("/v1/nodes", tuple[NodeStatus, ...]),
        ("/v1/deployments", tuple[DeploymentStatus, ...]),
        (f"/v1/deployments/{ready}", DeploymentStatus),
        (f"/v1/deployments/{ready}/ranks", tuple[RankStatus, ...]),
    ):
        answer = running.ask("GET", path)
        assert (answer.status, answer.kind) == (200, "application/json")
        assert msgspec.json.decode(answer.body, type=kind, strict=True)
    assert running.ask("GET", f"/v1/deployments/{ready}/incidents").json == []
    stacks = running.ask("GET", f"/v1/deployments/{ready}/stacks?rank=1").json
    assert [(one["rank"], one["processes"][0]["title"]) for one in stacks] == [(1, "VLLM::Worker")]
    problem(running.ask("GET", f"/v1/deployments/{ready}/stacks?rank=9"), 404, "not-found")
    status = msgspec.json.decode(running.ask("GET", "/v1/status").body, type=Status)
    (deployment,) = [one for one in status.deployments if one.name == ready]
    assert deployment.proof_age_s is not None
    assert deployment.proof_bound_s is not None
    assert deployment.proof_age_s < deployment.proof_bound_s
    assert [rank.node for rank in deployment.ranks] == list(NODES)


def test_ready_says_so_by_its_status(running: Coordinator, ready: str) -> None:
    answer = running.ask("GET", f"/v1/deployments/{ready}/ready")
    assert (answer.status, answer.json["ready"]) == (200, True)
    up(running, "waits")
    waiting = running.ask("GET", "/v1/deployments/waits/ready")
    assert (waiting.status, waiting.json["ready"]) == (503, False)
    assert waiting.json["reason"]
    assert "n1 runs tiny" in running.ask("GET", "/v1/deployments/waits").json["waiting_for"]["what"]
    running.ask("DELETE", "/v1/deployments/waits")


def test_log_lines_come_from_the_nodes(running: Coordinator, ready: str) -> None:
    answer = running.ask("GET", f"/v1/deployments/{ready}/logs")
    assert (answer.status, answer.kind) == (200, "application/x-ndjson")
    lines = [json.loads(line) for line in answer.body.splitlines()]
    assert [(line["rank"], line["text"]) for line in lines] == [
        (0, "a line of the log"),
        (1, "a line of the log"),
    ]
    problem(running.ask("GET", f"/v1/deployments/{ready}/logs?rank=2"), 404, "not-found")


def test_a_plan_starts_nothing(running: Coordinator, ready: str) -> None:
    before = running.ask("GET", f"/v1/deployments/{ready}").json
    planned = running.ask("POST", "/v1/plan", {"name": ready, **wish("engine.args.max-model-len=256")})
    plan = msgspec.json.decode(planned.body, type=Plan)
    assert (planned.status, plan.generation) == (200, before["generation"] + 1)
    assert ("--max-model-len", "256") in [arg.words for arg in plan.ranks[1].args]
    after = running.ask("GET", f"/v1/deployments/{ready}").json
    assert (after["intent"], after["generation"]) == (before["intent"], before["generation"])
    other = running.ask("POST", "/v1/plan", {"name": "other", **wish()})
    assert f"n1 runs {ready}" in problem(other, 400, "usage")["detail"]
    problem(running.ask("GET", "/v1/deployments/other"), 404, "not-found")


def test_metrics_can_be_scraped(running: Coordinator, ready: str) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    answer = running.ask("GET", "/metrics")
    assert answer.status == 200
    assert answer.kind == "text/plain"
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }
    assert found["sparkd_deployment_ready", ready] == 1
    assert found["sparkd_deployment_generation", ready] >= 1
    assert found["sparkd_node_in_contact", "n1"] == found["sparkd_node_in_contact", "n2"] == 1


def test_the_openapi_document_names_routes_and_records(running: Coordinator) -> None:
    document = running.ask("GET", "/openapi.json").json
    routes = {
        (method.upper(), path.replace("{name}", "tiny"))
        for path, found in document["paths"].items()
        for method in found
    }
    assert {route for route in ROUTES if "openapi" not in route[1] and "no/such" not in route[1]} <= routes
    schemas = set(document["components"]["schemas"])
    assert {
        "Status",
        "DeploymentStatus",
        "NodeStatus",
        "RankStatus",
        "CommandAnswer",
        "Plan",
        "Intent",
        "Problem",
    } <= schemas


# Events. ------------------------------------------------------------------------------------------------


def recent(one: Coordinator, count: int) -> list[Any]:
    events: list[Any] = one.ask("GET", f"/v1/events?follow=false&limit={count}").json
    return events


def test_the_last_events_at_once(running: Coordinator, ready: str) -> None:
    events = recent(running, 1000)
    assert [event["to"] for event in events if event["deployment"] == ready][-1] == "ready"
    assert all(event["reason"] for event in events)
    assert recent(running, 2) == events[-2:]
    assert recent(running, 0) == []
    only = running.ask("GET", f"/v1/events?follow=false&deployment={ready}").json
    assert {event["deployment"] for event in only} == {ready}


def test_a_stream_resumes_exactly_where_it_was(running: Coordinator, ready: str) -> None:
    events = recent(running, 1000)
    for at in (0, len(events) // 2, len(events) - 2):
        with running.events(last=events[at]["id"]) as stream:
            assert (stream.status, stream.kind) == (200, "text/event-stream")
            rest = events[at + 1 :]
            assert [(kind, ident, body) for kind, ident, body in stream.take(len(rest))] == [
                (event["kind"], event["id"], event) for event in rest
            ]


def test_a_new_stream_begins_now(running: Coordinator, ready: str) -> None:
    with running.events() as stream:
        up(running, "fresh")
        kind, _, body = stream.next()
        assert (kind, body["deployment"], body["from"], body["to"]) == ("phase", "fresh", None, "pending")
        running.ask("DELETE", "/v1/deployments/fresh")


def test_a_stream_of_one_deployment_still_resumes(running: Coordinator, ready: str) -> None:
    events = recent(running, 1000)
    mine = [event for event in events if event["deployment"] == ready]
    with running.events(last=events[0]["id"], query=f"?deployment={ready}") as stream:
        assert [ident for _, ident, _ in stream.take(len(mine))] == [event["id"] for event in mine]


@pytest.mark.parametrize("last", ["7-12345", "nonsense", ""])
def test_an_unknown_place_gets_the_whole_status(running: Coordinator, ready: str, last: str) -> None:
    with running.events(last=last) as stream:
        kind, ident, body = stream.next()
        assert kind == "reset"
        assert ready in [one.name for one in msgspec.convert(body, Status).deployments]
    # And from there on it goes as ever.
    newest = recent(running, 1)[0]["id"]
    assert ident == newest


def test_events_go_on_over_a_restart(tmp_path: Path) -> None:
    with coordinator(tmp_path, NODES) as one:
        nodes = [PlayedNode(one, node) for node in NODES]
        up(one, "d")
        until_phase(one, "d", "ready")
        before = recent(one, 1000)
        for node in nodes:
            node.stop()
        assert one.end(signal.SIGKILL) == -signal.SIGKILL
        one.start()
        assert recent(one, 1000)[: len(before)] == before
        with one.events(last=before[-1]["id"]) as stream:
            nodes = [PlayedNode(one, node, "run-2") for node in NODES]
            _, ident, _ = stream.next()
            assert ident.partition("-")[0] > before[-1]["id"].partition("-")[0], "a new term"
        for node in nodes:
            node.stop()


def test_a_stopping_coordinator_ends_its_streams(tmp_path: Path) -> None:
    with coordinator(tmp_path) as one, one.events() as stream:
        assert one.end() == 0
        with pytest.raises(EOFError):
            stream.next()


# One state, one coordinator, no neighbours. --------------------------------------------------------------


def run_coordinator(state: Path, token: Path, rest: str, agents: str) -> "subprocess.CompletedProcess[str]":
    """As a user starts it, for cases in which it ends by itself."""
    return subprocess.run(
        [
            *(sys.executable, "-P", "-m", "sparkd", "coordinator", "run"),
            *("--state-dir", str(state), "--token-file", str(token), "--rest", rest, "--agents", agents),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_a_second_coordinator_on_one_state_refuses(running: Coordinator) -> None:
    places = (f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}")
    second = run_coordinator(running.state, running.token_file, *places)
    assert second.returncode == 1
    assert f"another coordinator runs on {running.state}" in second.stderr
    assert "Traceback" not in second.stderr
    assert running.ask("GET", "/healthz").status == 200


@pytest.mark.parametrize(
    ("server", "place", "why"),
    [
        ("rest", "0.0.0.0:0", "no TLS"),
        ("agents", "0.0.0.0:0", "no TLS"),
        ("rest", "[::]:0", "no TLS"),
        ("rest", "spark-1:7070", "no TLS"),
        ("rest", ":7070", "no HOST:PORT"),
        ("agents", "127.0.0.1:99999", "cannot listen"),
        ("agents", "taken", "cannot listen"),
    ],
)
def test_where_it_does_not_listen(
    running: Coordinator, tmp_path: Path, server: str, place: str, why: str
) -> None:
    taken = f"127.0.0.1:{running.rest}"
    places = {"rest": "127.0.0.1:0", "agents": "127.0.0.1:0", server: taken if place == "taken" else place}
    ended = run_coordinator(tmp_path / "state", running.token_file, **places)
    assert (ended.returncode, "Traceback" in ended.stderr) == (2, False)
    assert why in ended.stderr


@pytest.mark.parametrize(("mode", "text", "why"), [(0o644, "x", "chmod 600"), (0o600, " ", "empty")])
def test_a_token_that_is_none(tmp_path: Path, mode: int, text: str, why: str) -> None:
    token = tmp_path / "token"
    token.write_text(text)
    token.chmod(mode)
    ended = run_coordinator(tmp_path / "state", token, "127.0.0.1:0", "127.0.0.1:0")
    assert ended.returncode == 2
    assert why in ended.stderr
    missing = run_coordinator(tmp_path / "state", tmp_path / "absent", "127.0.0.1:0", "127.0.0.1:0")
    assert (missing.returncode, "cannot be read" in missing.stderr) == (2, True)

"""Built-in profiles on eight nodes that a real coordinator knows: their plan, and what nodes must have."""

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sparkd.profile.lookup import load_profile
from sparkd.profile.merge import resolve
from sparkd.records.document import Document
from sparkd.records.memory import Memory
from sparkd.records.report import RankReport, Sample, TaskResult
from tests.bed.builtin_plans import EIGHT_SPARKS, golden_file
from tests.bed.coordinator import PATIENCE_S, Coordinator, sparkd
from tests.bed.fake_agent import FakeAgent


@pytest.fixture
def eight(tmp_path: Path) -> Iterator[Coordinator]:
    one = Coordinator(tmp_path, {facts.id: facts.name for facts in EIGHT_SPARKS})
    one.start()
    try:
        yield one
    finally:
        one.end(signal.SIGKILL)


def greeted(one: Coordinator) -> list[FakeAgent]:
    agents = [FakeAgent(one, facts.id) for facts in EIGHT_SPARKS]
    for agent, facts in zip(agents, EIGHT_SPARKS, strict=True):
        assert agent.hello(facts=facts).status == 200
    return agents


@contextmanager
def in_contact(one: Coordinator, samples: dict[str, Sample] | None = None) -> Iterator[None]:
    """All eight say hello and then report, by a thread of their own: a command takes longer than a lease."""
    agents = greeted(one)
    told, stop = threading.Event(), threading.Event()

    def beat() -> None:
        while not stop.wait(0.0 if not told.is_set() else 0.5):
            for agent in agents:
                assert agent.report(sample=(samples or {}).get(agent.node)).status == 200
            told.set()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        assert told.wait(PATIENCE_S)
        yield
    finally:
        stop.set()
        thread.join()


def document(agent: FakeAgent) -> Document:
    answer = agent.document()
    assert answer.status == 200, answer.body
    return msgspec.json.decode(answer.body, type=Document)


def test_the_plan_of_the_pro_model_is_eight_commands_and_a_sum(eight: Coordinator) -> None:
    with in_contact(eight):
        done = sparkd(eight, "plan", "mimo-v2.5-pro")
        variant = sparkd(eight, "plan", "mimo-v2.5-pro", "--variant", "mtp", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert done.stdout == golden_file("mimo-v2.5-pro", None).read_text()
    assert variant.returncode == 0, variant.stderr
    ranks = json.loads(variant.stdout)["ranks"]
    assert [rank["node"] for rank in ranks] == [facts.name for facts in EIGHT_SPARKS]
    assert all("--speculative-config" in rank["argv"] for rank in ranks)
    refused = sparkd(eight, "plan", "mimo-v2.5-pro", "--variant", "mtp", "--set", "layout.tp=4")
    assert refused.returncode == 2
    assert "variant mtp is for 8 nodes; this layout has 4" in refused.stderr


def test_memory_that_is_not_there_blocks_until_it_is_waived(eight: Coordinator) -> None:
    third = EIGHT_SPARKS[2]
    busy = Sample(Memory(third.memory_total, 60 << 30, 1 << 30))
    with in_contact(eight, {third.id: busy}):
        done = sparkd(eight, "plan", "mimo-v2.5-pro")
        waived = sparkd(eight, "plan", "mimo-v2.5-pro", "--force", "MEMORY_AVAILABLE")
    assert done.returncode == 1
    assert "MEMORY_AVAILABLE" in done.stdout
    assert "= 96.6 GiB, and spark-3 has 60.0 GiB available" in done.stdout
    assert waived.returncode == 0
    assert "MEMORY_AVAILABLE" in waived.stdout


def answers(agent: FakeAgent, files: dict[str, Any]) -> None:
    ports = [task for task in document(agent).tasks if task.kind == "port"]
    said = {"files": files, "facts": {"wall": time.time()}}
    results = [
        TaskResult(task.id, ok=True, result=said[task.kind])
        for task in document(agent).tasks
        if task.kind in said
    ]
    results += [
        TaskResult(
            task.id, ok=True, result={"ports": [{**port, "free": True} for port in task.args["ports"]]}
        )
        for task in ports
    ]
    assert agent.report(results=tuple(results)).status == 200


def has(model: str, draft: str, defect: str | None = None) -> dict[str, Any]:
    """An answer to the task `files`."""
    defects = [{"kind": "config", "file": f"{draft}/config.json", "detail": defect}] if defect else []
    return {"model": {"path": model}, "also": {"draft": {"path": draft, "defects": defects}}}


def wished(one: Coordinator) -> dict[str, Any]:
    intent = resolve(load_profile("mimo-v2.5-dflash")).intent
    answer = one.ask("PUT", "/v1/deployments/d", {"intent": msgspec.to_builtins(intent)})
    assert answer.status == 201, answer.body
    return intent.profile


def without_a_trial(*agents: FakeAgent) -> None:
    """The fabric cannot be tried here, so the launch goes on without it."""
    end = time.monotonic() + PATIENCE_S
    while [spec.kind for agent in agents for spec in document(agent).ranks] != ["serve"] * len(agents):
        assert time.monotonic() < end
        for agent in agents:
            now = document(agent)
            trials = (spec for spec in now.ranks if spec.kind == "probe")
            fallen = tuple(RankReport(trial.name, "fallen", fell="no torch here") for trial in trials)
            agent.report(applied=now.order, ranks=fallen)


def test_each_rank_gets_the_drafter_from_where_its_node_has_it(eight: Coordinator) -> None:
    first, second = greeted(eight)[:2]
    profile = wished(eight)
    (asked,) = (task for task in document(second).tasks if task.kind == "files")
    assert asked.args["model"]["also"] == profile["model"]["also"]
    answers(first, has("/srv/m", "/srv/d"))
    answers(second, has("/home/m", "/home/d"))
    without_a_trial(first, second)
    for agent, path in ((first, "/srv/d"), (second, "/home/d")):
        (spec,) = document(agent).ranks
        config = json.loads(spec.args[spec.args.index("--speculative-config") + 1])
        assert config["model"] == path


def test_a_drafter_with_a_defect_starts_nothing_and_names_it(eight: Coordinator) -> None:
    first, second = greeted(eight)[:2]
    wished(eight)
    defect = "/home/d/config.json: line 7: a comma after the last entry, before `}`"
    answers(first, has("/srv/m", "/srv/d"))
    answers(second, has("/home/m", "/home/d", defect))
    (shown,) = eight.ask("GET", "/v1/status").json["deployments"]
    assert shown["phase"] == "failed"
    assert defect in shown["reason"]
    verdict = shown["verdicts"][0]
    assert (verdict["id"], verdict["node"], verdict["evidence"]) == ("MODEL_DEFECT", "spark-2", defect)
    assert document(first).ranks == ()


def test_a_bf16_drafter_beside_fp8_is_refused_with_the_arithmetic_and_its_variants_are_not(
    eight: Coordinator,
) -> None:
    bf16 = ("--set", "engine.args.speculative-config.kv_cache_dtype=bfloat16")
    with in_contact(eight):
        refused = sparkd(eight, "plan", "mimo-v2.5-dflash", *bf16)
        ways_out = [
            sparkd(eight, "plan", "mimo-v2.5-dflash", "--variant", variant)
            for variant in ("bf16-draft", "bf16-draft-pages")
        ]
    assert refused.returncode == 1, refused.stderr
    assert "KV_FIT" in refused.stdout
    assert "takes 19.4 GiB for 5.6 GiB of content" in refused.stdout
    for done in ways_out:
        assert done.returncode == 0, done.stdout + done.stderr

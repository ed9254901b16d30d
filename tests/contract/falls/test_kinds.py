"""Every kind of fall, from outside: any essential process, any way to end, any phase."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from sparkd.records.status import DeploymentStatus
from tests.bed.local_set import Bed, Deployment, Process, Watch, all_gone, segments, until
from tests.bed.ranks import by_docker, kernel_tells
from tests.bed.stand_in import configure

KILL, ABORT, TERM = signal.SIGKILL, signal.SIGABRT, signal.SIGTERM


KERNEL_TELLS = kernel_tells()


def rendezvous_port(deployment: Deployment) -> str:
    found = re.search(r"--master-port (\d+)", deployment.process(0, "leader").title)
    assert found is not None
    return found[1]


def recovers(
    deployment: Deployment, watch: Watch, old: list[Process], generation: int, since: float
) -> DeploymentStatus:
    """What must follow on every fall; gives the status when it is ready again."""
    watch.reached("recovering", since)
    all_gone(old)
    again = deployment.ready(generation=generation + 1)
    assert again.generation == generation + 1
    assert again.falls == 1
    assert {e.generation for e in deployment.events() if e.kind == "fall"} == {generation}
    return again


READY_CASES = [
    # rank, process, signal sent; code and signal that the incident must name
    pytest.param(1, "leader", KILL, None, 9, id="headless-launcher-killed"),
    pytest.param(1, "VLLM::Worker", KILL, None, 9, id="follower-worker-killed"),
    pytest.param(0, "VLLM::EngineCore", KILL, None, 9, id="engine-core-killed"),
    pytest.param(0, "VLLM::Worker", KILL, None, 9, id="head-worker-killed"),
    pytest.param(0, "leader", KILL, None, 9, id="api-server-killed"),
    # Its EngineCore ends with 0 just before it does.
    pytest.param(0, "leader", TERM, 0, None, id="api-server-exits-0"),
    pytest.param(1, "VLLM::Worker", ABORT, None, 6, id="follower-worker-aborts"),
    pytest.param(0, "VLLM::EngineCore", ABORT, None, 6, id="engine-core-aborts"),
    pytest.param(0, "leader", ABORT, None, 6, id="api-server-aborts"),
]


@pytest.mark.parametrize(("rank", "title", "sent", "code", "number"), READY_CASES)
def test_a_fall_while_ready(
    bed: Bed, name: str, *, rank: int, title: str, sent: int, code: int | None, number: int | None
) -> None:
    deployment = bed.up(name)
    generation = deployment.ready().generation
    watch = Watch(bed.client, name)
    old, port = deployment.all_processes(), rendezvous_port(deployment)
    shared = segments(old)
    assert len(shared) == (0 if by_docker() else 3), "a container's are its own, and go with it"
    since = time.monotonic()
    os.kill(deployment.process(rank, title).pid, sent)
    recovers(deployment, watch, old, generation, since)
    assert rendezvous_port(deployment) != port
    assert not any(path.exists() for path in shared)
    (incident,) = deployment.incidents()
    fall = incident["fall"]
    assert (fall["rank"], fall["generation"]) == (rank, generation)
    from_shim = title == "leader" and sent != TERM
    if from_shim or KERNEL_TELLS:
        assert (fall["code"], fall["signal"]) == (code, number), fall
        assert fall["how"] == ("shim" if from_shim else "pidfd")
    else:
        assert fall["how"] in {"log", "unknown"}


def test_the_shim_killed_is_a_fall_too(bed: Bed, name: str) -> None:
    deployment = bed.up(name)
    generation = deployment.ready().generation
    watch, old, since = Watch(bed.client, name), deployment.all_processes(), time.monotonic()
    os.kill(deployment.process(1, "shim").pid, KILL)
    recovers(deployment, watch, old, generation, since)
    assert deployment.incidents()[0]["fall"]["rank"] == 1


BY_ITSELF = [
    pytest.param("launching", 1, 1, id="import-error"),
    pytest.param("launching", 0, 0, id="api-server-exits-0-launching"),
    pytest.param("rendezvous", -6, 1, id="headless-aborts-at-the-rendezvous"),
    pytest.param("loading", 3, 1, id="headless-exits-3-loading"),
    pytest.param("loading", 1, 0, id="api-server-exits-1-loading"),
    pytest.param("warming", -6, 0, id="api-server-aborts-warming"),
    pytest.param("serving", 0, 1, id="headless-exits-0-serving"),
]


@pytest.mark.parametrize(("phase", "code", "rank"), BY_ITSELF)
def test_a_launcher_that_ends_by_itself(
    bed: Bed, engine: Path, name: str, *, phase: str, code: int, rank: int
) -> None:
    configure(engine, EXIT=f"{phase}:{code}@{rank}")
    watch, since = Watch(bed.client, name), time.monotonic()
    deployment = bed.up(name, "restart.backoff_s=1")
    watch.reached("recovering", since)
    configure(engine, EXIT=None)
    recovers(deployment, watch, deployment.all_processes(1), 1, since)
    fall = deployment.incidents()[0]["fall"]
    ended = (code, None) if code >= 0 else (None, -code)
    assert (fall["rank"], fall["code"], fall["signal"], fall["how"]) == (rank, *ended, "shim"), fall


BOOTING = [
    pytest.param("launching", 1, "leader", id="headless-launcher-launching"),
    pytest.param("loading", 1, "VLLM::Worker", id="follower-worker-loading"),
    pytest.param("loading", 0, "VLLM::EngineCore", id="engine-core-loading"),
    pytest.param("warming", 0, "VLLM::Worker", id="head-worker-warming"),
    pytest.param("warming", 0, "leader", id="api-server-warming"),
]


@pytest.mark.parametrize(("phase", "rank", "title"), BOOTING)
def test_a_kill_while_booting(
    bed: Bed, engine: Path, name: str, *, phase: str, rank: int, title: str
) -> None:
    # Every phase must last longer than an agent's look on a busy machine; the canary makes `warming` last.
    configure(engine, BOOT_S=3.6, PREFILL_S=5 if phase == "warming" else None)
    deployment = bed.up(name)
    watch = Watch(bed.client, name)
    deployment.until(phase)
    victim = deployment.process(rank, title)
    old, since = deployment.all_processes(), time.monotonic()
    shared = segments(old)
    os.kill(victim.pid, KILL)
    configure(engine, BOOT_S=None, PREFILL_S=None)
    recovers(deployment, watch, old, 1, since)
    assert not any(path.exists() for path in shared)
    told = next(event for _, event in watch.seen if event.to == "recovering")
    assert told.from_ == phase
    fall = deployment.incidents()[0]["fall"]
    assert (fall["rank"], fall["signal"]) == (rank, 9 if title == "leader" or KERNEL_TELLS else None), fall


def test_the_launchers_account_of_a_dead_worker_is_in_the_incident(bed: Bed, name: str) -> None:
    deployment = bed.up(name)
    deployment.ready()
    os.kill(deployment.process(1, "VLLM::Worker").pid, KILL)
    deployment.ready(generation=2)
    lines = deployment.incidents()[0]["fall"]["lines"]
    assert any("VllmWorker-1 died unexpectedly (exit code: -9)" in line for line in lines)


def test_the_end_of_a_child_that_is_not_essential_is_no_fall(bed: Bed, name: str) -> None:
    deployment = bed.up(name)
    before = deployment.ready()
    for rank in range(2):
        leader = deployment.process(rank, "leader")
        helpers = [p for p in deployment.processes(rank) if p.title == leader.title and p != leader]
        assert len(helpers) == 1
        os.kill(helpers[0].pid, KILL)
        all_gone(helpers)
    time.sleep(1.5)  # more than a scan and a beat: there is nothing to wait for
    after = deployment.status()
    assert (after.phase, after.generation, after.falls) == ("ready", before.generation, 0)


def test_daemons_of_a_fallen_rank_do_not_stay(bed: Bed, engine: Path, name: str) -> None:
    """They have left session and process group, and their parent is gone."""
    configure(engine, DAEMON=1)
    deployment = bed.up(name)
    deployment.ready()
    old = deployment.all_processes()
    sessions = {os.getsid(p.pid) for p in old}
    assert len(sessions) == 6, "shim, leader and daemon of each rank"
    os.kill(deployment.process(0, "leader").pid, KILL)
    all_gone(old)
    until(lambda: deployment.status().generation == 2, "the next generation")
    deployment.ready(generation=2)

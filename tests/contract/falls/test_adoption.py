"""Daemons are killed, models serve on: adoption by the next agent, the next coordinator, or both."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkd.daemon import Daemon
from sparkd.records.status import DeploymentStatus
from tests.bed.local_set import Bed, Process, all_gone, ask, until
from tests.bed.stand_in import configure
from tests.bed.stream import Stream

WHO: dict[str, Callable[[Bed], tuple[Daemon, ...]]] = {
    "coordinator": lambda bed: (bed.local.coordinator,),
    "agent-of-rank-0": lambda bed: bed.local.agents[:1],
    "agent-of-rank-1": lambda bed: bed.local.agents[1:],
    "both-agents": lambda bed: bed.local.agents,
    "all": lambda bed: bed.local.daemons,
}
any_daemon = pytest.mark.parametrize("who", ["coordinator", "both-agents", "all"])


def same_ranks(before: DeploymentStatus, after: DeploymentStatus) -> None:
    assert after.generation == before.generation
    assert after.falls == before.falls
    assert [rank.pid for rank in after.ranks] == [rank.pid for rank in before.ranks]


@any_daemon
def test_a_gang_that_serves_is_adopted(bed: Bed, engine: Path, name: str, who: str) -> None:
    configure(engine, STEP_S=0.02)
    deployment = bed.up(name)
    before = deployment.ready()
    alive = deployment.all_processes()
    stream = Stream(deployment, tokens=500)
    bed.kill(*WHO[who](bed))
    seen = stream.tokens
    until(lambda: stream.tokens > seen + 10, "tokens while the daemons are dead")
    bed.start()
    assert stream.running
    after = deployment.ready()
    same_ranks(before, after)
    configure(engine, STEP_S=None)
    assert stream.rest() == 500
    assert deployment.all_processes() == alive
    # It is looked after as before.
    os.kill(deployment.process(1, "VLLM::Worker").pid, signal.SIGKILL)
    deployment.ready(generation=before.generation + 1)
    all_gone(alive)


@any_daemon
def test_a_gang_that_loads_is_adopted(bed: Bed, engine: Path, name: str, who: str) -> None:
    configure(engine, BOOT_S=4.5)
    deployment = bed.up(name)
    deployment.until("loading")
    until(lambda: all(rank.pid for rank in deployment.status().ranks), "both pids")
    before = deployment.status()
    bed.kill(*WHO[who](bed))
    bed.start()
    same_ranks(before, deployment.ready())


def ends(processes: list[Process]) -> None:
    os.kill(processes[0].pid, signal.SIGKILL)
    all_gone(processes)


@pytest.mark.parametrize("who", ["agent-of-rank-1", "all"])
@pytest.mark.parametrize("title", ["leader", "VLLM::Worker"])
def test_a_rank_that_died_meanwhile_is_noticed(
    bed: Bed, engine: Path, name: str, *, who: str, title: str
) -> None:
    configure(engine, EXIT_DELAY_S=0.2)
    deployment = bed.up(name)
    deployment.ready()
    old = deployment.all_processes()
    victim, leader = deployment.process(1, title), deployment.process(1, "leader")
    bed.kill(*WHO[who](bed))
    os.kill(victim.pid, signal.SIGKILL)
    all_gone([victim, leader])
    bed.start()
    deployment.ready(generation=2)
    all_gone(old)
    (incident,) = deployment.incidents()
    fall = incident["fall"]
    how = (
        "shim" if title == "leader" else "log"
    )  # its launcher lived to write it down, and then exited with 0
    assert (fall["rank"], fall["code"], fall["signal"], fall["how"]) == (1, None, 9, how), fall
    assert title in fall["reason"]


def test_a_worker_that_died_meanwhile_is_noticed_though_its_launcher_lives(
    bed: Bed, engine: Path, name: str
) -> None:
    configure(engine, EXIT_DELAY_S=600)
    deployment = bed.up(name)
    deployment.ready()
    old = deployment.all_processes()
    victim = deployment.process(1, "VLLM::Worker")
    bed.kill(bed.local.agents[1])
    ends([victim])
    bed.start()
    deployment.ready(generation=2)
    all_gone(old)
    fall = deployment.incidents()[0]["fall"]
    assert (fall["rank"], fall["signal"], fall["how"]) == (1, 9, "log"), fall
    assert "VLLM::Worker" in fall["reason"]


@pytest.mark.parametrize("who", ["agent-of-rank-0", "all"])
def test_down_with_daemons_dead_a_moment_ago(bed: Bed, name: str, who: str) -> None:
    deployment = bed.up(name)
    deployment.ready()
    old = deployment.all_processes()
    bed.kill(*WHO[who](bed))
    bed.start()
    deployment.down()
    all_gone(old, 1.0)


@pytest.mark.parametrize("after_ms", [0, 60, 120, 180, 260, 360])
def test_an_agent_killed_while_its_rank_is_being_started(bed: Bed, name: str, after_ms: int) -> None:
    """Between document, intent, shim and record, wherever the kill lands: ready, one generation at a time."""
    deployment = bed.up(name)
    time.sleep(after_ms / 1000)
    bed.kill(bed.local.agents[1])
    bed.start()
    now = deployment.ready()
    assert now.generation <= 2
    for generation in range(1, now.generation):
        assert not deployment.all_processes(generation)
    assert len(deployment.all_processes()) == 9
    assert ask(deployment) == "84"


def test_a_node_that_lost_its_ledger_keeps_its_rank(bed: Bed, name: str) -> None:
    deployment = bed.up(name)
    before = deployment.ready()
    bed.kill(*bed.local.agents)
    for ledger in (bed.paths.local / "agents").glob("*/**/ledger.sqlite*"):
        ledger.unlink()
    bed.start()
    same_ranks(before, deployment.ready())
    assert ask(deployment) == "84"
    bed.client.restart(name, before.generation)
    assert deployment.ready(generation=before.generation + 1).generation == before.generation + 1

"""`down` and `restart` in any phase, twice, and from two places at once."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bed.local_set import Bed, Deployment, Process, all_gone, segments, until
from tests.bed.stand_in import configure

PHASES = ("launching", "loading", "warming", "ready", "recovering", "failed")


def bring_to(phase: str, bed: Bed, engine: Path, name: str) -> Deployment:
    """A deployment in that phase, in which it stays for at least a second."""
    match phase:
        case "recovering":
            deployment = bed.up(name, "restart.backoff_s=300")
            deployment.ready()
            os.kill(deployment.process(1, "leader").pid, signal.SIGKILL)
        case "failed":
            configure(engine, EXIT="launching:3@0")
            deployment = bed.up(name, "restart.budget=0")
        case "ready":
            deployment = bed.up(name)
        case _:
            # The canary's answer takes its time, so that `warming` is not over between two looks.
            configure(engine, BOOT_S=3.6, PREFILL_S=5 if phase == "warming" else None)
            deployment = bed.up(name)
    deployment.until(phase)
    configure(engine, BOOT_S=None, EXIT=None, PREFILL_S=None)
    return deployment


def at_once(act: Callable[[], object]) -> None:
    """From two places in the same moment, and then once more."""
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(act), pool.submit(act)]:
            done.result()
    act()


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("phase", PHASES)
def test_down_in_any_phase(bed: Bed, engine: Path, name: str, phase: str) -> None:
    deployment = bring_to(phase, bed, engine, name)
    before = deployment.status()
    old, shared = deployment.all_processes(), segments(deployment.all_processes())
    at_once(lambda: bed.client.down(name))
    stopped = deployment.until("stopped")
    assert stopped.desired == "down"
    assert (stopped.left_on, stopped.generation, stopped.falls) == ((), before.generation, before.falls)
    all_gone(old, 1.0)
    assert not any(path.exists() for path in shared)
    assert before.endpoint is None or not listening(int(before.endpoint.base_url.split(":")[2].split("/")[0]))
    bed.client.down(name)
    # A node's last report may come later than the proof, and say more of its rank.
    assert replace(deployment.status(), ranks=()) == replace(stopped, ranks=())


@pytest.mark.parametrize("phase", PHASES)
def test_restart_in_any_phase(bed: Bed, engine: Path, name: str, phase: str) -> None:
    deployment = bring_to(phase, bed, engine, name)
    before, old = deployment.status(), deployment.all_processes()
    at_once(lambda: bed.client.restart(name, before.generation))
    after = deployment.ready(generation=before.generation + 1)
    assert after.generation == before.generation + 1
    assert after.falls == (0 if phase == "failed" else before.falls)
    all_gone(old, 1.0)


def test_down_while_it_is_being_brought_up_again(bed: Bed, engine: Path, name: str) -> None:
    deployment = bed.up(name)
    deployment.ready()
    for _ in range(3):
        bed.client.restart(name, deployment.status().generation)
        bed.client.down(name)
        assert deployment.until("stopped").desired == "down"
        assert not deployment.all_processes()
        bed.up(name)
        deployment.ready()


def test_a_head_that_ignores_sigterm_is_killed_after_the_grace(bed: Bed, engine: Path, name: str) -> None:
    configure(engine, IGNORE_TERM=1)
    deployment = bed.up(name)
    deployment.ready()
    old: list[Process] = deployment.all_processes()
    deployment.down()
    all_gone(old, 1.0)


def test_restart_of_a_generation_that_is_over_is_harmless(bed: Bed, name: str) -> None:
    deployment = bed.up(name)
    first = deployment.ready().generation
    bed.client.restart(name, first)
    after = deployment.ready(generation=first + 1)
    bed.client.restart(name, first)
    assert deployment.ready().generation == after.generation


def test_down_from_two_terminals_while_a_third_waits_for_it_to_be_ready(
    bed: Bed, engine: Path, name: str
) -> None:
    configure(engine, BOOT_S=30)

    def sparkd(*words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "sparkd", *words],
            env=bed.env,
            cwd=bed.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    deployment = Deployment(bed, name)
    waiting = sparkd("up", "tiny", "--name", name, "--local", "2")
    until(lambda: name in {one.name for one in bed.client.status().deployments}, "the deployment")
    deployment.until("launching")
    old = until(deployment.all_processes, "its ranks")
    for terminal in [sparkd("down", name), sparkd("down", name)]:
        said, _ = terminal.communicate(timeout=60)
        assert terminal.returncode == 0, said
        assert f"{name} is stopped" in said
    said, _ = waiting.communicate(timeout=60)
    assert waiting.returncode == 1, said
    assert "was stopped meanwhile" in said
    all_gone(old, 1.0)

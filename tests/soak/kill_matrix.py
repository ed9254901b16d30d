"""Every kind of fall with real vLLM, in every phase, and adoption: a table of what was measured.

    python -m tests.soak.kill_matrix                # all, about 40 minutes
    python -m tests.soak.kill_matrix ready-exit-0   # only what begins so
    python -m tests.soak.kill_matrix --docker       # the same in containers, of an engine that it starts

Known: the event stream told of `recovering`. Gone: nothing in /proc is left of any rank of that generation.
Seconds from the kill. Each case ends in `ready` with the next generation, then `down`, after which no
process, no listening port and no shared-memory file of the gang is left.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sparkd.daemon import Daemon
from tests.bed.local_set import (
    Bed,
    Deployment,
    Process,
    Watch,
    all_gone,
    ask,
    local_bed,
    segments,
    until,
)
from tests.bed.saboteur import EXIT_0, PLAN_FILE, buttons, make_saboteur
from tests.bed.stream import Stream
from tests.docker.engine import docker_engine
from tests.docker.vllm_image import import_vllm

ROOT = Path(__file__).parents[2]
VLLM = ROOT / ".venv-vllm"
MODELS = ROOT / ".models"
IMAGE = "sparkd-tests/vllm-with-buttons:1"
BOOT_S = 300.0
GONE_S = 10.0
"""Well above the second and a half that is promised: the machine may be busy. The figures are printed."""

ROLES = (
    ("head launcher", 0, "leader"),
    ("EngineCore", 0, "VLLM::EngineCore"),
    ("head worker", 0, "VLLM::Worker"),
    ("headless launcher", 1, "leader"),
    ("follower worker", 1, "VLLM::Worker"),
)
WAYS = (("SIGKILL", signal.SIGKILL), ("abort", signal.SIGABRT), ("exit 0", EXIT_0))
BOOTING = (
    # As soon as the process is there; the head's launcher once the gang loads.
    ("headless launcher", 1, "leader", ""),
    ("EngineCore", 0, "VLLM::EngineCore", ""),
    ("follower worker", 1, "VLLM::Worker", ""),
    ("head launcher", 0, "leader", "loading warming"),
)
IMPORTS = (
    ("headless launcher", 1, "vllm.v1.executor.multiproc_executor"),
    ("head worker", 0, "vllm.v1.worker.cpu_worker"),
)


@dataclass(frozen=True)
class Case:
    name: str
    run: Callable[[Bed, str], str]
    """With the bed and a deployment's name; gives the row's figures."""


def cases() -> Iterator[Case]:
    for what, rank, title in ROLES:
        for way, number in WAYS:
            name = f"ready, {what}, {way}"
            yield Case(name, lambda bed, at, r=rank, t=title, n=number: while_ready(bed, at, r, t, n))  # type: ignore[misc]
    for what, rank, title, phases in BOOTING:
        name = f"booting, {what}, SIGKILL"
        yield Case(name, lambda bed, at, p=phases, r=rank, t=title: while_booting(bed, at, p, r, t))  # type: ignore[misc]
    for what, rank, module in IMPORTS:
        name = f"booting, {what}, exit 1 at import"
        yield Case(name, lambda bed, at, r=rank, m=module: failing_import(bed, at, r, m))  # type: ignore[misc]
    for what, choose in DAEMONS:
        yield Case(f"adoption, {what}", lambda bed, at, c=choose: adoption(bed, at, c))  # type: ignore[misc]


def while_ready(bed: Bed, name: str, rank: int, title: str, number: int) -> str:
    deployment = bed.up(name)
    before = deployment.ready(timeout_s=BOOT_S)
    ask(deployment)
    figures = fall(deployment, rank, title, number)
    end_well(deployment, before.generation + 1)
    return figures


def while_booting(bed: Bed, name: str, phases: str, rank: int, title: str) -> str:
    deployment = bed.up(name)
    until(lambda: deployment.status().ranks, "ranks", BOOT_S)
    deployment.process(rank, title, BOOT_S)
    if phases:
        until(lambda: deployment.status().phase in phases.split(), f"{name} to be {phases}", BOOT_S)
    figures = fall(deployment, rank, title, signal.SIGKILL)
    end_well(deployment, 2)
    return figures


def failing_import(bed: Bed, name: str, rank: int, module: str) -> str:
    plan = bed.folder / PLAN_FILE
    plan.write_text(f"{name}-g1-r{rank} {module}")
    deployment = bed.up(name)
    watch = Watch(bed.client, name)
    begun = time.monotonic()
    known = watch.reached("recovering", begun, BOOT_S)
    plan.unlink()
    until(lambda: not deployment.all_processes(1), "the end of the first generation", GONE_S)
    gone = time.monotonic()
    last = deployment.incidents()[0]["fall"]
    assert (last["rank"], last["code"]) == (rank, 1), last
    assert any("planted: this module cannot be imported" in line for line in last["lines"]), last["lines"]
    end_well(deployment, 2)
    return f"| - | {gone - known:.2f} after known |"


def fall(deployment: Deployment, rank: int, title: str, number: int) -> str:
    watch = Watch(deployment.bed.client, deployment.name)
    old, victim = deployment.all_processes(), deployment.process(rank, title)
    used, generation = segments(old), deployment.status().generation
    time.sleep(1.0)  # the stream is open, and a young rank, which is looked at more often, is older
    at = time.monotonic()
    os.kill(victim.pid, number)
    gone = until(lambda: _gone_at(old), f"the end of {old}", GONE_S) - at
    known = watch.reached("recovering", at) - at
    left = [path for path in used if path.exists()]
    last = until(deployment.incidents, "an incident")[0]["fall"]
    expected = (None, int(number)) if number != EXIT_0 else (0, None)
    assert (last["rank"], last["generation"]) == (rank, generation), last
    assert (last["code"], last["signal"]) == expected, last
    until(lambda: not any(path.exists() for path in left), "shared memory of the dead to be removed", GONE_S)
    return f"| {known:.2f} | {gone:.2f} |"


def _gone_at(old: list[Process]) -> float | None:
    return None if any(process.alive for process in old) else time.monotonic()


DAEMONS: tuple[tuple[str, Callable[[Bed], list[Daemon]]], ...] = (
    ("one agent killed", lambda bed: [bed.local.agents[1]]),
    ("the coordinator killed", lambda bed: [bed.local.coordinator]),
    ("all daemons killed", lambda bed: list(bed.local.daemons)),
)


def adoption(bed: Bed, name: str, choose: Callable[[Bed], list[Daemon]]) -> str:
    deployment = bed.up(name)
    before = deployment.ready(timeout_s=BOOT_S)
    alive = deployment.all_processes()
    stream = Stream(deployment, tokens=400)
    bed.kill(*choose(bed))
    seen = stream.tokens
    until(lambda: stream.tokens > seen + 10, "tokens while a daemon is dead")
    begun = time.monotonic()
    bed.start()
    after = deployment.ready()
    took = time.monotonic() - begun
    assert stream.rest() >= 400
    assert (after.generation, after.falls) == (before.generation, before.falls)
    assert deployment.all_processes() == alive
    end_well(deployment, before.generation)
    return f"| adopted, ready after {took:.1f} | no token lost |"


def end_well(deployment: Deployment, generation: int) -> None:
    again = deployment.ready(generation=generation, timeout_s=BOOT_S)
    assert again.generation == generation
    ask(deployment)
    old = deployment.all_processes()
    used, ports = segments(old), listening(old)
    assert ports, "an engine that listens nowhere was not looked at rightly"
    deployment.down()
    all_gone(old, 1.0)
    assert not [path for path in used if path.exists()]
    for port in ports:
        assert not _listens(port), f"port {port} is still listened on"


def listening(processes: list[Process]) -> set[int]:
    """TCP ports that the processes listen on, by `ss`."""
    pids = {process.pid for process in processes}
    shown = subprocess.run(["ss", "-Hltnp"], check=True, capture_output=True, text=True).stdout
    return {
        int(line.split()[3].rpartition(":")[2])
        for line in shown.splitlines()
        if pids & {int(pid) for pid in re.findall(r"pid=(\d+)", line)}
    }


def _listens(port: int) -> bool:
    shown = subprocess.run(["ss", "-Hltn", f"sport = :{port}"], check=True, capture_output=True, text=True)
    return bool(shown.stdout.strip())


def main(words: list[str]) -> int:
    asked = [word.replace("-", " ") for word in words if word != "--docker"]
    chosen = [
        case
        for case in cases()
        if not asked or any(case.name.replace(",", "").startswith(word) for word in asked)
    ]
    failed = 0
    sys.stdout.write("| case | known | all gone |\n|---|---|---|\n")
    where = in_containers if "--docker" in words else in_processes
    with tempfile.TemporaryDirectory() as name, where(Path(name)) as bed:
        for number, case in enumerate(chosen):
            try:
                figures = case.run(bed, f"m{os.getpid()}-{number}")
            except AssertionError as error:
                failed += 1
                figures = f"| FAILED: {error} | |"
                end_all(bed)
            sys.stdout.write(f"| {case.name} {figures}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(chosen)} cases, {failed} failed\n")
    return 1 if failed else 0


@contextmanager
def in_processes(folder: Path) -> Iterator[Bed]:
    engine = make_saboteur(folder / "engine", VLLM, folder / PLAN_FILE)
    with local_bed(folder, engine, MODELS) as bed:
        yield bed


@contextmanager
def in_containers(folder: Path) -> Iterator[Bed]:
    """The image has the buttons; the folder of the plan is mounted as the models are, and holds no engine."""
    with tempfile.TemporaryDirectory() as name, docker_engine(Path(name) / "docker") as engine:
        packages = import_vllm(engine, IMAGE, VLLM, buttons(folder / PLAN_FILE))
        env = {
            "DOCKER_HOST": f"unix://{engine.socket}",
            "SPARKD_MODELS": f"{MODELS.resolve()}:{packages}:{folder}",
        }
        with local_bed(folder, VLLM, MODELS, more_env=env, image=IMAGE) as bed:
            yield bed


def end_all(bed: Bed) -> None:
    bed.start()
    for one in bed.client.status().deployments:
        if one.phase not in ("stopped", "failed"):
            Deployment(bed, one.name).down()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A node without an agent: real shims, real processes, real supervisors, in a folder of the test."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

from sparkd.clock import SystemClock
from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd.records.intent import Intent
from sparkd.records.rank import Address, Descriptor, RankSpec
from sparkd_agent.exits import wait_status
from sparkd_agent.logs import RankLog
from sparkd_agent.procfs import ProcFs
from sparkd_agent.rankfolder import RankFolder
from sparkd_agent.runtime.base import RankHandle, Runtime, make_inner_launch, make_launch
from sparkd_agent.runtime.manager import SystemBus
from sparkd_agent.runtime.process import ProcessRuntime
from sparkd_agent.runtime.systemd import SystemdRuntime
from sparkd_agent.shm import ShmJanitor
from sparkd_agent.supervisor import RankSupervisor, RankView
from tests.bed.containers import HOSTILE, container_runtime, pinned, socket_of_tests

RUNTIME_VARIABLE = "SPARKD_TESTS_RUNTIME"
"""Where PID 1 is systemd, `systemd` makes every rank a unit: the lab runs these tests that way too. `docker`
makes each a container of the engine that `containers.py` names: `make docker` does that.
"""
PATIENCE_S = 30.0
"""For what takes well under a second on an idle machine."""


def by_systemd() -> bool:
    return os.environ.get(RUNTIME_VARIABLE) == "systemd"


def by_docker() -> bool:
    return os.environ.get(RUNTIME_VARIABLE) == "docker"


def rank_spec(name: str, *args: str, env: dict[str, str] | None = None, **more: object) -> RankSpec:
    spec = RankSpec(
        name=name,
        deployment="t",
        generation=1,
        rank=0,
        ranks=1,
        runtime="docker" if by_docker() else "systemd" if by_systemd() else "process",
        engine="default",
        args=args,
        env=env or {},
        rendezvous=Address("127.0.0.1", 29600),
        descriptor=Descriptor("t", Intent("t", {}), 1, 1, ("n1",), 8100),
    )
    return replace(spec, **more)  # type: ignore[arg-type] - fields by name, checked by the dataclass


async def until(condition: Callable[[], object], what: str) -> None:
    """Poll until it holds; fail with what was waited for."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        await asyncio.sleep(0.01)


class Rank:
    """One supervised rank and everything its supervisor told."""

    def __init__(self, bed: "RankBed", handle: RankHandle, spec: RankSpec) -> None:
        self.handle = handle
        self.folder = RankFolder(handle.folder)
        self.log = RankLog(self.folder.log)
        self.told: list[tuple[float, RankView]] = []
        self.supervisor = RankSupervisor(
            handle,
            spec,
            procfs=bed.procfs,
            clock=SystemClock(),
            shm=bed.janitor,
            on_change=lambda one: self.told.append((time.monotonic(), one.view)),
            limits=bed.limits,
        )
        self.task = asyncio.create_task(self.supervisor.run())

    @property
    def view(self) -> RankView:
        return self.supervisor.view

    @property
    def leader(self) -> int:
        assert self.handle.leader is not None
        return self.handle.leader.pid

    @property
    def shim(self) -> int:
        assert self.handle.shim is not None
        return self.handle.shim.pid

    def texts(self) -> list[str]:
        return [line.text for line in self.log.last(5000)]

    async def says(self, text: str) -> str:
        """The first line that begins with the text."""
        await until(lambda: any(line.startswith(text) for line in self.texts()), f"the line {text!r}")
        return next(line for line in self.texts() if line.startswith(text))

    async def state(self, *states: str) -> float:
        """When it was told to be in one of the states (monotonic)."""
        await until(lambda: any(view.state in states for _, view in self.told), f"state {states}")
        return next(at for at, view in self.told if view.state in states)

    async def gone(self) -> RankView:
        await asyncio.wait_for(self.task, PATIENCE_S)
        return self.view


class RankBed:
    def __init__(self, folder: Path, limits: Defaults, shm: Path) -> None:
        self.folder = folder
        self.limits = limits
        self.procfs = ProcFs()
        self.janitor = ShmJanitor(self.procfs, shm)
        self.runtime = self._runtime()
        self.ranks: list[Rank] = []

    def _runtime(self, *command: str) -> Runtime:
        if by_docker():
            return container_runtime(
                self.folder, socket_of_tests(), procfs=self.procfs, limits=self.limits, command=command
            )
        kind = SystemdRuntime if by_systemd() else ProcessRuntime
        return kind(self.folder / "ranks", procfs=self.procfs, limits=self.limits)

    async def launch(self, spec: RankSpec, *command: str) -> RankHandle:
        if by_docker():
            spec = replace(spec, image=pinned(self.folder, socket_of_tests()))
            return await self._runtime(*command).start(spec, make_inner_launch(spec, rank_env={}))
        launch = make_launch(
            spec,
            command or (sys.executable, "-I", "-S", str(HOSTILE)),
            agent_env={"PATH": "/usr/bin:/bin", "SECRET_OF_THE_AGENT": "x"},
            rank_env={},
            cwd=str(self.folder),
        )
        return await self.runtime.start(spec, launch)

    async def start(self, name: str, *args: str, **more: object) -> Rank:
        spec = rank_spec(name, *args, **more)  # type: ignore[arg-type] - passed through
        return self.supervise(await self.launch(spec), spec)

    def supervise(self, handle: RankHandle, spec: RankSpec) -> Rank:
        rank = Rank(self, handle, spec)
        self.ranks.append(rank)
        return rank


@contextlib.asynccontextmanager
async def rank_bed(folder: Path, shm: Path | None = None, **limits: float) -> AsyncIterator[RankBed]:
    """Whatever a test leaves is ended, by the code under test; a rank that stays fails the test."""
    shm = shm or folder / "shm"
    shm.mkdir(exist_ok=True)
    bed = RankBed(folder, replace(DEFAULTS, **limits), shm)  # type: ignore[arg-type] - some are whole numbers
    try:
        yield bed
    finally:
        for rank in bed.ranks:
            rank.supervisor.kill("the test is over")
        async with asyncio.timeout(PATIENCE_S):
            for rank in bed.ranks:
                await asyncio.wait([rank.task])
            for rank in bed.ranks:
                await bed.runtime.stop(rank.handle)
            if by_systemd():
                # It lets go a moment after it was asked; the next test may use the same name.
                names = {rank.handle.name for rank in bed.ranks}
                bus = SystemBus(PATIENCE_S)
                await until(lambda: not names & {one.rank for one in bus.units()}, "the units to go")
        bed.runtime.close()


def kernel_tells() -> bool:
    """Whether the kernel keeps the status of a process that was reaped (Linux 6.15)."""
    child = subprocess.Popen(["true"])
    pidfd = os.pidfd_open(child.pid)
    try:
        child.wait()
        return wait_status(pidfd) is not None
    finally:
        os.close(pidfd)

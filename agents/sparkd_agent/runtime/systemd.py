"""The `systemd` runtime: each rank is a transient unit of PID 1, so it outlives the agent and its upgrades.

The shim is what the unit executes. Its record, not systemd's, says how the rank ended; the unit adds the name
that can be used once, the control group, and a `/dev/shm` of the rank's own.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from sparkd.clock import Instant
from sparkd.errors import RankNotStarted, ServiceManagerUnreachable
from sparkd.failpoints import VARIABLE as FAILPOINTS
from sparkd.failpoints import passed
from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd.records.names import parse_rank_name
from sparkd.records.rank import RankSpec
from sparkd_agent.cgroup import CGROUP_ROOT, folder_of
from sparkd_agent.kill import kill_exactly
from sparkd_agent.members import Marks, RankMembers, end_all
from sparkd_agent.procfs import ProcFs
from sparkd_agent.rankfolder import RankFolder
from sparkd_agent.runtime.base import Launch, RankHandle
from sparkd_agent.runtime.handover import make_folder, recorded, shim_answer, shim_spec, shim_words, spec_file
from sparkd_agent.runtime.manager import Manager, SystemBus, SystemPrograms, UnitState
from sparkd_agent.runtime.unit import RankUnit, Stdio

log = logging.getLogger("sparkd.agent")

T = TypeVar("T")
_STDIN = 0


@dataclass(frozen=True, slots=True)
class _Asked:
    """Descriptors that stay open until the shim has answered: the spec, and the reading end of its answer."""

    spec: int
    answer: int

    def close(self) -> None:
        os.close(self.spec)
        os.close(self.answer)


class SystemdRuntime:
    """Needs a running event loop for `start` and `stop`. Asks the first manager that can be reached."""

    def __init__(
        self,
        ranks: str | Path,
        procfs: ProcFs | None = None,
        limits: Defaults = DEFAULTS,
        managers: tuple[Manager, ...] | None = None,
        cgroups: str = CGROUP_ROOT,
    ) -> None:
        self._ranks = Path(ranks).absolute()
        self._procfs = procfs or ProcFs()
        self._limits = limits
        patience_s = limits.service_manager_s
        self._managers = managers or (SystemBus(patience_s), SystemPrograms(patience_s))
        self._cgroups = cgroups

    async def start(self, spec: RankSpec, launch: Launch) -> RankHandle:
        folder = make_folder(self._ranks, spec)
        try:
            folder.unit.touch(0o600)
            asked = await asyncio.to_thread(self._ask_for, folder, spec, launch)
        except (OSError, ServiceManagerUnreachable) as error:
            raise RankNotStarted(f"{spec.name}: no unit could be asked for: {error}") from error
        passed("agent.7-shim-spawned")
        try:
            handle = await shim_answer(folder, asked.answer, self._limits.shim_start_s)
        except RankNotStarted as error:
            ended = await self._abandon(folder, asked.spec)
            raise RankNotStarted(f"{error} ({ended})" if ended else str(error)) from None
        except BaseException:
            await self._abandon(folder, asked.spec)
            raise
        finally:
            asked.close()
        passed("agent.8-shim-answered")
        return handle

    def list(self) -> list[RankHandle]:
        """What has a folder here, and units of this agent whose folder was lost.

        A corrupt record is a rank without known processes; raises StateTooNew for a later format.
        """
        units = self._own_units()
        handles = []
        for folder in map(RankFolder, sorted(self._ranks.glob("*")) if self._ranks.is_dir() else ()):
            if not folder.unit.exists():
                continue
            handle = recorded(folder)
            state = None if units is None else units.pop(folder.name, None)
            if handle.shim is None and (units is None or (state is not None and state.may_run)):
                handle = replace(handle, coming_up=True, cgroup=self._cgroup_of(state))
            handles.append(handle)
        orphans = (units or {}).values()
        return handles + [self._orphan(state) for state in orphans if state.may_run]

    async def stop(self, handle: RankHandle) -> None:
        if handle.shim is not None and handle.boot == self._procfs.boot_id():
            kill_exactly(self._procfs, handle.shim)
        try:
            await asyncio.to_thread(self._first, lambda manager: manager.tidy(handle.name))
        except ServiceManagerUnreachable as error:
            log.warning("the unit of %s stays until the next start of the agent: %s", handle.name, error)

    def forget(self, name: str) -> None:
        if parse_rank_name(name) is not None:
            RankFolder(self._ranks / name).remove()

    def close(self) -> None:
        """Nothing is held."""

    # Starting

    def _ask_for(self, folder: RankFolder, spec: RankSpec, launch: Launch) -> _Asked:
        """Runs in a thread, which owns every descriptor until it returns."""
        armed = os.environ.get(FAILPOINTS)
        unit = RankUnit(
            name=spec.name,
            command=tuple(shim_words(_STDIN, spec.name)),
            folder=str(folder.path),
            account=launch.account,
            environment=((FAILPOINTS, armed),) if armed else (),
        )
        with ExitStack() as ours, ExitStack() as kept:
            spec_fd = spec_file(shim_spec(folder, spec, launch, self._limits, folder_fd=None, in_unit=True))
            kept.callback(os.close, spec_fd)
            answer_read, answer_write = os.pipe2(os.O_CLOEXEC)
            kept.callback(os.close, answer_read)
            ours.callback(os.close, answer_write)
            errors = folder.path / "shim.err"
            errors_fd = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            ours.callback(os.close, errors_fd)
            stdio = Stdio(spec_fd, answer_write, errors_fd)
            self._first(lambda manager: manager.start(unit, stdio))
            kept.pop_all()
        return _Asked(spec_fd, answer_read)

    async def _abandon(self, folder: RankFolder, spec_fd: int) -> str:
        """Nothing of a rank that was reported as not started may run, nor begin to run later.

        Gives what systemd knows of its end; empty if that is nothing.
        """
        os.ftruncate(spec_fd, 0)  # a shim that comes late reads no spec
        units = await asyncio.to_thread(self._own_units) or {}
        state = units.get(folder.name)
        cgroup = self._cgroup_of(state)
        marks = Marks(folder.name, str(folder.path), None, None, (), cgroup=cgroup)
        await end_all(RankMembers(self._procfs, marks), self._limits.kill_repeat_s)
        await self.stop(RankHandle(folder.name, str(folder.path), boot="", started=Instant(0.0, 0.0)))
        return "" if state is None or not state.result else f"its unit: {state.result}"

    # Looking

    def _own_units(self) -> dict[str, UnitState] | None:
        """By the rank's name; None when nobody can say. Another agent's ranks are none of ours."""
        try:
            found = self._first(lambda manager: manager.units())
        except ServiceManagerUnreachable as error:
            log.warning("units cannot be listed, folders have to do: %s", error)
            return None
        ours = str(self._ranks)
        return {state.rank: state for state in found if os.path.dirname(state.folder or "") == ours}  # noqa: PTH120 - a text

    def _orphan(self, state: UnitState) -> RankHandle:
        shim = self._procfs.ref(state.main_pid) if state.main_pid else None
        return RankHandle(
            state.rank,
            str(self._ranks / state.rank),
            boot=self._procfs.boot_id(),
            started=Instant(0.0, 0.0),
            shim=shim,
            cgroup=self._cgroup_of(state),
        )

    def _cgroup_of(self, state: UnitState | None) -> str | None:
        return None if state is None else folder_of(state.control_group, self._cgroups)

    def _first(self, ask: Callable[[Manager], T]) -> T:
        """The answer of the first manager that can be reached. Raises the last one's reason if none can."""
        reason = ServiceManagerUnreachable("there is no way to ask systemd")
        for manager in self._managers:
            try:
                return ask(manager)
            except ServiceManagerUnreachable as error:
                reason = error
        raise reason

"""The systemd runtime on the systemd of the machine that runs these tests, as root. `test_systemd.py` does.

What any runtime must do is in `tests/contract/test_supervisor.py`, which is run on such a machine too. Here
is what only units have: properties, names, a /dev/shm of their own, a control group, and systemd itself.
"""

import asyncio
import json
import os
import signal
import stat
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sparkd.errors import RankNotStarted, Spent
from sparkd_agent.account import find_account
from sparkd_agent.cgroup import Cgroup
from sparkd_agent.procfs import FOLDER_VARIABLE, ProcFs
from sparkd_agent.rankfolder import RankFolder
from sparkd_agent.runtime.base import RankHandle, make_launch
from sparkd_agent.runtime.manager import Manager, SystemBus, SystemPrograms, UnitState
from sparkd_agent.runtime.systemd import SystemdRuntime
from sparkd_agent.runtime.unit import RankUnit, Stdio, unit_name
from tests.bed.ranks import Rank, RankBed, rank_bed, rank_spec, until

NAME = f"sparkd-u{os.getpid()}-g1-r0"
USER = "nobody"
SECRET = "s3cret-that-nobody-may-see"
PROC = ProcFs()
NO_BUS = "unix:path=/run/there-is-no-bus"

TELL = """
import json, os, time
os.close(os.open("/dev/shm/mine", os.O_CREAT | os.O_WRONLY, 0o600))
print("told " + json.dumps({
    "ids": os.getresuid() + os.getresgid(), "groups": os.getgroups(),
    "oom": open("/proc/self/oom_score_adj").read().strip(),
    "home": os.environ["HOME"], "user": os.environ["USER"], "cwd": os.getcwd(),
    "shm": os.listdir("/dev/shm"), "ipc": os.readlink("/proc/self/ns/ipc"),
}), flush=True)
time.sleep(1000)
"""


def systemctl(*words: str) -> str:
    return subprocess.run(["systemctl", *words], capture_output=True, text=True, check=False).stdout


def loaded() -> list[str]:
    """Units of ranks that systemd knows, in whatever state."""
    return systemctl("list-units", "--all", "--plain", "--no-legend", "sparkd-u*-g*-r*.service").split()


def run(folder: Path, test: Callable[[RankBed], Awaitable[None]], **limits: float) -> None:
    async def within() -> None:
        async with rank_bed(folder, **limits) as bed:
            await test(bed)
        await until(lambda: not loaded(), f"{loaded()} to be let go")

    asyncio.run(within())


async def start_telling(bed: RankBed) -> tuple[Rank, dict[str, object]]:
    """A rank of the user, and what it says of itself."""
    spec = rank_spec(NAME, "-c", TELL, secrets={"VLLM_API_KEY": SECRET})
    account = find_account(USER, None)
    launch = make_launch(
        spec,
        ("/usr/bin/python3",),
        agent_env={"PATH": "/usr/bin:/bin", "HOME": "/root", "USER": "root"},
        rank_env={},
        cwd=account.working_folder,
        account=account,
    )
    rank = bed.supervise(await bed.runtime.start(spec, launch), spec)
    return rank, json.loads((await rank.says("told ")).removeprefix("told "))


def test_the_rank_is_the_users_and_its_witness_is_out_of_its_reach(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        rank, told = await start_telling(bed)
        account = find_account(USER, None)
        assert told["ids"] == [account.uid] * 3 + [account.gid] * 3
        assert told["groups"] == list(account.groups)
        assert (told["home"], told["user"]) == (account.home, USER)
        shown = systemctl("show", unit_name(NAME), "--property=User,Group,Slice,Description")
        assert f"User={USER}" in shown
        assert "Slice=sparkd-ranks.slice" in shown
        assert Path(f"/proc/{rank.shim}").stat().st_uid == 0
        for path in (rank.folder.path, *rank.folder.path.rglob("*")):
            at = path.stat()
            assert at.st_uid == 0, path
            assert stat.S_ISDIR(at.st_mode) or not at.st_mode & 0o022, path
        assert rank.folder.path.stat().st_mode & 0o077 == 0

    run(tmp_path, test)


def test_the_kernel_takes_the_rank_before_anything_else(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        _, told = await start_telling(bed)
        assert told["oom"] == "800"
        shown = systemctl("show", unit_name(NAME))
        for line in ("OOMPolicy=continue", "LimitMEMLOCK=infinity", "LimitMEMLOCKSoft=infinity"):
            assert line in shown.splitlines()

    run(tmp_path, test)


def test_its_shared_memory_is_its_own_and_goes_with_it(tmp_path: Path) -> None:
    """So that logind, which removes what a user leaves when he logs out, removes nothing of a rank."""

    async def test(bed: RankBed) -> None:
        rank, told = await start_telling(bed)
        assert told["shm"] == ["mine"]
        assert not Path("/dev/shm/mine").exists()
        assert told["ipc"] != str(Path("/proc/self/ns/ipc").readlink())
        rank.supervisor.kill("done")
        assert (await rank.gone()).remains == ()
        assert not [
            pid for pid in PROC.pids() if "/dev/shm" in _mounts(pid) and "mine" in _listed(pid, "dev/shm")
        ]

    run(tmp_path, test)


def _mounts(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/mountinfo").read_text()
    except OSError:
        return ""


def _listed(pid: int, folder: str) -> list[str]:
    try:
        return [path.name for path in Path(f"/proc/{pid}/root/{folder}").iterdir()]
    except OSError:
        return []


def test_secrets_are_shown_by_nobody(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        rank, _ = await start_telling(bed)
        unit = unit_name(NAME)
        for words in (("show", "--all", unit), ("cat", unit), ("status", "--full", "--lines=100", unit)):
            said = systemctl(*words)
            assert NAME in said
            assert SECRET not in said
        journal = subprocess.run(
            ["journalctl", "--no-pager", "-o", "export"], capture_output=True, check=True
        )
        assert SECRET.encode() not in journal.stdout
        for pid in PROC.pids():
            assert SECRET not in PROC.title(pid)
        assert SECRET.encode() not in Path(f"/proc/{rank.shim}/environ").read_bytes()
        kept = RankFolder(rank.handle.folder).path / "api.key"
        assert kept.read_text() == SECRET, "it is there for the next agent"
        for place in (tmp_path, Path("/run/systemd")):
            holding = [path for path in place.rglob("*") if path.is_file() and _holds(path)]
            assert holding == ([kept] if place == tmp_path else [])

    run(tmp_path, test)


def _holds(path: Path) -> bool:
    try:
        return SECRET.encode() in path.read_bytes()
    except OSError:
        return False


def test_a_name_that_systemd_knows_is_spent_even_if_its_folder_was_lost(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        rank = await bed.start(NAME, "wait")
        lost = rank.folder.path.rename(tmp_path / "lost")
        with pytest.raises(Spent, match="was already loaded"):
            await bed.start(NAME, "wait")
        RankFolder(rank.folder.path).remove()
        lost.rename(rank.folder.path)

    run(tmp_path, test)


def test_a_unit_whose_folder_was_lost_is_found_and_ended(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        rank = await bed.start(NAME, "wait")
        await rank.says("ready")
        rank.task.cancel()
        RankFolder(rank.folder.path).remove()
        (handle,) = bed.runtime.list()
        assert (handle.name, handle.leader) == (NAME, None)
        assert handle.shim == PROC.ref(rank.shim)
        found = bed.supervise(handle, rank_spec(NAME))
        view = await found.gone()
        assert view.fell == "its shim was never started"
        assert not PROC.alive(rank.handle.leader)  # type: ignore[arg-type] - it had one
        assert not PROC.alive(rank.handle.shim)  # type: ignore[arg-type] - as above
        bed.ranks.remove(rank)

    run(tmp_path, test)


def test_another_agents_units_are_none_of_ours(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        await bed.start(NAME, "wait")
        assert [handle.name for handle in bed.runtime.list()] == [NAME]
        assert SystemdRuntime(tmp_path / "others").list() == []

    run(tmp_path, test)


def test_a_unit_that_is_coming_up_is_waited_for_and_ended_if_nothing_comes(tmp_path: Path) -> None:
    """An agent asked for it and died; whatever it was, it does not run on unseen."""

    async def test(bed: RankBed) -> None:
        folder = RankFolder(tmp_path / "ranks" / NAME)
        folder.create()
        folder.unit.touch()
        null = os.open(os.devnull, os.O_RDWR)
        unit = RankUnit(NAME, ("/usr/bin/sleep", "1000"), str(folder.path), account=None)
        SystemBus(10.0).start(unit, Stdio(null, null, null))
        os.close(null)
        (handle,) = bed.runtime.list()
        assert handle.coming_up
        assert handle.cgroup is not None
        group = Cgroup(handle.cgroup)
        await until(group.pids, "the unit's process")
        (sleeper,) = group.pids()
        rank = bed.supervise(handle, rank_spec(NAME))
        await asyncio.sleep(0.3)
        assert rank.view.state == "starting"
        assert (await rank.gone()).fell == "its shim was never started"
        assert PROC.stat(sleeper) is None

    run(tmp_path, test, shim_start_s=1.0)


def test_a_unit_that_was_never_asked_for_is_not_waited_for(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        folder = RankFolder(tmp_path / "ranks" / NAME)
        folder.create()
        folder.unit.touch()
        (handle,) = bed.runtime.list()
        assert not handle.coming_up

    run(tmp_path, test)


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_after_its_end_the_unit_keeps_the_name_until_it_is_tidied_up(tmp_path: Path, how: str) -> None:
    async def test(bed: RankBed) -> None:
        rank = await bed.start(NAME, *(("exits", "0") if how == "exit" else ("wait",)))
        if how == "kill":
            await rank.says("ready")
            os.kill(rank.shim, signal.SIGKILL)
        await rank.gone()
        active = "active" if how == "exit" else "failed"
        await until(lambda: f"ActiveState={active}" in systemctl("show", unit_name(NAME)), active)
        assert [state.rank for state in SystemBus(10.0).units()] == [NAME]
        await bed.runtime.stop(rank.handle)
        await until(lambda: not loaded(), "the unit to go")
        await bed.runtime.stop(rank.handle)

    run(tmp_path, test)


@pytest.mark.parametrize("verb", ["daemon-reload", "daemon-reexec"])
def test_ranks_do_not_notice_when_systemd_starts_anew(tmp_path: Path, verb: str) -> None:
    async def test(bed: RankBed) -> None:
        rank = await bed.start(NAME, "wait")
        await rank.says("ready")
        subprocess.run(["systemctl", verb], check=True)
        await until(lambda: [one.rank for one in SystemBus(10.0).units()] == [NAME], "its list")
        assert rank.view.state == "running"
        assert PROC.alive(rank.handle.leader)  # type: ignore[arg-type] - it has one
        rank.supervisor.kill("done")
        assert (await rank.gone()).exits[0].how == "shim"

    run(tmp_path, test)


def test_the_rank_is_in_a_group_below_its_shims(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        rank = await bed.start(NAME, "wait")
        assert rank.handle.cgroup is not None
        one = Cgroup(rank.handle.cgroup)  # at once, as the supervisor does
        await rank.says("ready")
        group = Path(rank.handle.cgroup)
        assert (group / "cgroup.procs").read_text().split() == [str(rank.shim)]
        assert str(rank.leader) in (group / "rank" / "cgroup.procs").read_text().split()
        has_kill = (group / "rank" / "cgroup.kill").exists()
        assert one.kill() == has_kill
        one.close()
        if has_kill:
            view = await rank.gone()
            assert view.exit is not None
            assert (view.exit.signal, view.exit.how) == (signal.SIGKILL, "shim"), "its witness was spared"

    run(tmp_path, test)


# Without a bus.


def runtime_with(bed: RankBed, *managers: Manager) -> SystemdRuntime:
    return SystemdRuntime(bed.folder / "ranks", bed.procfs, bed.limits, managers)


async def start_with(bed: RankBed, *managers: Manager) -> RankHandle:
    bed.runtime = runtime_with(bed, *managers)
    return await bed.launch(rank_spec(NAME, "wait"))


def test_without_a_bus_systemds_own_programs_do(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        handle = await start_with(bed, SystemBus(1.0, NO_BUS), SystemPrograms(10.0))
        rank = bed.supervise(handle, rank_spec(NAME))
        await rank.says("ready")
        assert [one.shim for one in bed.runtime.list()] == [handle.shim]
        assert SystemPrograms(10.0).units() == SystemBus(10.0).units()
        Path(handle.folder).rename(tmp_path / "lost")
        with pytest.raises(Spent):
            await bed.launch(rank_spec(NAME, "wait"))
        RankFolder(handle.folder).remove()
        (tmp_path / "lost").rename(handle.folder)
        rank.supervisor.kill("done")
        await rank.gone()
        await bed.runtime.stop(handle)
        await until(lambda: not loaded(), "the unit to go")

    run(tmp_path, test)


def test_with_neither_the_rank_is_not_started_and_nothing_is_left(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        with pytest.raises(RankNotStarted, match="no unit could be asked for: no system bus"):
            await start_with(bed, SystemBus(1.0, NO_BUS))
        assert not loaded()

    run(tmp_path, test)


class Deaf:
    """Asked, and never heard from: the unit comes late, or not at all."""

    def __init__(self, late: bool) -> None:
        self._late = late
        self._asked: tuple[RankUnit, Stdio] | None = None

    def start(self, unit: RankUnit, stdio: Stdio) -> None:
        if self._late:  # as when PID 1 hung and then went on: it has the descriptors
            self._asked = unit, Stdio(*(os.dup(fd) for fd in (stdio.spec, stdio.answer, stdio.errors)))

    def come_after_all(self) -> None:
        assert self._asked is not None
        SystemBus(10.0).start(*self._asked)
        for fd in (self._asked[1].spec, self._asked[1].answer, self._asked[1].errors):
            os.close(fd)

    def units(self) -> list[UnitState]:
        return SystemBus(10.0).units()

    def tidy(self, rank: str) -> None:
        SystemBus(10.0).tidy(rank)


def test_a_unit_that_comes_after_it_was_given_up_runs_no_rank(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        deaf = Deaf(late=True)
        with pytest.raises(RankNotStarted, match="no sign of life"):
            await start_with(bed, deaf)
        deaf.come_after_all()
        await until(
            lambda: "ActiveState=failed" in systemctl("show", unit_name(NAME)), "the shim to find no spec"
        )
        folders = [PROC.environ_value(pid, FOLDER_VARIABLE) or "" for pid in PROC.pids()]
        assert not [one for one in folders if one.startswith(str(tmp_path))]
        deaf.tidy(NAME)

    run(tmp_path, test, shim_start_s=0.5)


def test_an_interpreter_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    """The shim cannot be executed: systemd lets go of its end of the pipe."""

    class NoPython:
        def start(self, unit: RankUnit, stdio: Stdio) -> None:
            SystemBus(10.0).start(replace(unit, command=("/no/python",)), stdio)

        def units(self) -> list[UnitState]:
            return SystemBus(10.0).units()

        def tidy(self, rank: str) -> None:
            SystemBus(10.0).tidy(rank)

    async def test(bed: RankBed) -> None:
        with pytest.raises(RankNotStarted, match="its unit: exit-code, status 203"):
            await asyncio.wait_for(start_with(bed, NoPython()), 5.0)

    run(tmp_path, test)

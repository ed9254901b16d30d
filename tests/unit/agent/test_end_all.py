"""Ending a rank that nobody supervises, on a laid-out /proc: until nothing is left, or nobody waits."""

import asyncio
from pathlib import Path

import pytest

from sparkd_agent.members import Marks, RankMembers, end_all
from sparkd_agent.procfs import ProcFs

NOBODY = 2**22 + 1
"""Above every pid that Linux gives."""


def laid_out(folder: Path) -> tuple[RankMembers, Path, Path]:
    """A process in a group that can be killed as a whole: all of it, its stat, and the file to kill by."""
    process = folder / "proc" / str(NOBODY)
    process.mkdir(parents=True)
    (process / "stat").write_text(f"{NOBODY} (python3) D 1 1 1 {' '.join(['0'] * 18)}\n")
    rank = folder / "unit" / "rank"
    rank.mkdir(parents=True)
    (rank / "cgroup.procs").write_text(f"{NOBODY}\n")
    (rank / "cgroup.kill").touch()
    marks = Marks("sparkd-d-g1-r0", "/ranks/r", None, None, (), cgroup=str(folder / "unit"))
    return RankMembers(ProcFs(folder / "proc"), marks), process / "stat", rank / "cgroup.kill"


def is_open(file: Path) -> bool:
    return any(descriptor.resolve() == file for descriptor in Path("/proc/self/fd").iterdir())


def test_until_nothing_is_left(tmp_path: Path) -> None:
    members, stat, by = laid_out(tmp_path)
    assert is_open(by), "opened before it is needed"

    async def run() -> None:
        ending = asyncio.ensure_future(end_all(members, 0.001))
        while not by.read_text():
            await asyncio.sleep(0.001)
        assert not ending.done()
        stat.unlink()
        await asyncio.wait_for(ending, 10)

    asyncio.run(run())
    assert not is_open(by)


def test_who_gives_up_waiting_leaves_nothing_open(tmp_path: Path) -> None:
    members, _, by = laid_out(tmp_path)

    async def run() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(end_all(members, 0.001), 0.05)

    asyncio.run(run())
    assert by.read_text(), "it was sent SIGKILL"
    assert not is_open(by)

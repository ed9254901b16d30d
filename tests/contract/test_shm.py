"""Shared memory of dead ranks: exactly theirs is removed, and only once nobody uses it."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkd_agent.procfs import ProcFs
from sparkd_agent.shm import ShmJanitor
from tests.bed.ranks import RankBed, rank_bed, rank_spec, until

NAME = f"sparkd-m{os.getpid()}-g1-r0"
OTHER = f"sparkd-m{os.getpid()}-g2-r0"
_HOLD = "import sys,time; f=open(sys.argv[1]); print('holds', flush=True); time.sleep(600)"


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def shm(tmp_path: Path) -> Path:
    folder = tmp_path / "shm"
    folder.mkdir()
    (folder / "of-another-program").write_bytes(b"x")
    return folder


async def sharing(bed: RankBed, name: str, *files: str):  # noqa: ANN201 - a Rank of the bed
    rank = await bed.start(name, "shares", str(bed.folder / "shm"), *files)
    await rank.says("ready")
    notes = rank.folder.shm_names
    await until(notes.exists, "the janitor's notes")
    return rank


def test_exactly_what_a_dead_rank_used_is_removed(tmp_path: Path, shm: Path) -> None:
    async def test() -> None:
        async with rank_bed(tmp_path) as bed:
            rank = await sharing(bed, NAME, "mapped", "held", "sem.held")
            other = await sharing(bed, OTHER, "of-the-other-rank")
            rank.supervisor.kill("test")
            assert (await rank.gone()).remains == ()
            assert names(shm) == {"of-another-program", "of-the-other-rank"}
            other.supervisor.kill("test")
            await other.gone()
            assert names(shm) == {"of-another-program"}

    asyncio.run(test())


def test_what_a_living_process_still_uses_stays(tmp_path: Path, shm: Path) -> None:
    async def test() -> None:
        async with rank_bed(tmp_path) as bed:
            rank = await sharing(bed, NAME, "mapped", "shared-with-a-stranger")
            stranger = subprocess.Popen(
                [sys.executable, "-c", _HOLD, str(shm / "shared-with-a-stranger")], stdout=subprocess.PIPE
            )
            assert stranger.stdout is not None
            try:
                stranger.stdout.readline()
                rank.supervisor.kill("test")
                await rank.gone()
                assert names(shm) == {"of-another-program", "shared-with-a-stranger"}
            finally:
                stranger.kill()
                stranger.wait()
                stranger.stdout.close()

    asyncio.run(test())


def test_a_name_made_anew_by_somebody_else_stays(tmp_path: Path, shm: Path) -> None:
    async def test() -> None:
        async with rank_bed(tmp_path) as bed:
            rank = await sharing(bed, NAME, "mapped", "reborn")
            (shm / "reborn").rename(shm / "moved")  # its inode lives on, so the new one must differ
            (shm / "reborn").write_bytes(b"of somebody else")
            rank.supervisor.kill("test")
            await rank.gone()
            assert (shm / "reborn").read_bytes() == b"of somebody else"

    asyncio.run(test())


def test_the_next_agent_knows_what_the_last_one_noted(tmp_path: Path, shm: Path) -> None:
    async def test() -> None:
        async with rank_bed(tmp_path) as bed:
            rank = await sharing(bed, NAME, "mapped")
            rank.task.cancel()
            await asyncio.wait([rank.task])
            os.kill(rank.leader, 9)
            await until(lambda: not rank.folder.locked(), "the rank to end with nobody watching")
            bed.ranks.clear()
            bed.janitor = ShmJanitor(ProcFs(), shm)
            await bed.supervise(rank.handle, rank_spec(NAME)).gone()
            assert names(shm) == {"of-another-program"}

    asyncio.run(test())

"""Semaphores of multiprocessing in the real /dev/shm: glibc maps them under a name that is gone at once."""

import asyncio
import multiprocessing
import os
import sys
from pathlib import Path

from tests.bed.ranks import rank_bed, rank_spec, until

SHM = Path("/dev/shm")
_HOLDS = """
import multiprocessing, time
lock = multiprocessing.get_context("spawn").Lock()
print("lock", lock._semlock.name, flush=True)
time.sleep(600)
"""


def test_a_semaphore_of_a_killed_rank_is_removed_and_others_stay(tmp_path: Path) -> None:
    async def test() -> None:
        mine = multiprocessing.get_context("spawn").Lock()
        async with rank_bed(tmp_path, shm=SHM) as bed:
            spec = rank_spec(f"sparkd-s{os.getpid()}-g1-r0")
            rank = bed.supervise(await bed.launch(spec, sys.executable, "-c", _HOLDS), spec)
            name = (await rank.says("lock /")).removeprefix("lock /")
            theirs = SHM / f"sem.{name}"
            assert theirs.exists()
            await until(rank.folder.shm_names.exists, "the janitor's notes")
            assert theirs.name in rank.folder.shm_names.read_text()
            rank.supervisor.kill("test")
            assert (await rank.gone()).remains == ()
            assert not theirs.exists()
        assert (SHM / f"sem.{mine._semlock.name[1:]}").exists()  # type: ignore[attr-defined]

    asyncio.run(test())

"""Run as the first process of a small pid namespace: pids are reused, and no outsider may ever be signalled.

`python pid_reuse.py FOLDER SCENE`; exits with 0 when every witness lived, with 77 when the namespace could
not be made small.
"""

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path

from tests.bed.ranks import RankBed, rank_bed, rank_spec, until

NAME = "sparkd-reuse-g1-r0"
PID_MAX = 400
_RESERVED = 300  # the kernel hands these out only once


def spawn(then: object = None) -> int:
    pid = os.fork()
    if pid == 0:
        if callable(then):
            then()
        os._exit(0)
    return pid


def burn_reserved() -> None:
    while (pid := spawn()) < _RESERVED + 5:
        os.waitpid(pid, 0)
    os.waitpid(pid, 0)


def sleeper() -> None:
    os.setsid()
    time.sleep(600)


def abandoned_session() -> None:
    """A session whose leader is gone: only its number is left, and that is the rank's leader's pid."""
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)


def take(pid: int, then: object) -> None:
    """Fork until a child gets this very pid, which then behaves as asked."""
    for _ in range(20 * PID_MAX):
        child = os.fork()
        if child == 0:
            if os.getpid() == pid and callable(then):
                then()
            os._exit(0)
        if child == pid:
            return
        os.waitpid(child, 0)
    raise AssertionError(f"pid {pid} never came round")


async def dead_rank(bed: RankBed) -> tuple[int, int]:
    """A rank whose shim and leader were killed with no agent watching. Returns their pids."""
    handle = await bed.launch(rank_spec(NAME, "wait"))
    assert handle.shim is not None
    assert handle.leader is not None
    os.kill(handle.shim.pid, signal.SIGKILL)
    os.kill(handle.leader.pid, signal.SIGKILL)
    await bed.runtime.stop(handle)
    os.waitpid(handle.leader.pid, 0)  # adopted by us, the namespace's first process
    return handle.shim.pid, handle.leader.pid


async def reused(folder: Path, behaviour: object) -> None:
    """The dead rank's pids belong to others when its next agent comes."""
    async with rank_bed(folder) as bed:
        shim, leader = await dead_rank(bed)
        take(leader, behaviour)
        take(shim, sleeper)
        await until(lambda: outsiders(bed, leader), "the witness to be in its session")
        (handle,) = bed.runtime.list()
        view = await bed.supervise(handle, rank_spec(NAME)).gone()
        assert view.state == "gone", view
        assert outsiders(bed, leader), "the witness with the leader's pid, or session, was ended"
        assert bed.procfs.stat(shim), "the witness with the shim's pid was ended"


def outsiders(bed: RankBed, session: int) -> list[int]:
    return [one.pid for one in bed.procfs.stats().values() if one.session == session and not one.ended]


async def churn(folder: Path) -> None:
    """Outsiders come and go on the same few pids while a breeding rank is killed; each must end by itself."""
    over = threading.Event()
    harmed: list[int] = []

    def outside() -> None:
        while not over.is_set():
            pid = os.fork()
            if pid == 0:
                os._exit(42)
            status = os.waitpid(pid, 0)[1]
            if os.waitstatus_to_exitcode(status) != 42:
                harmed.append(status)

    witnesses = threading.Thread(target=outside)
    witnesses.start()
    try:
        async with rank_bed(folder) as bed:
            for generation in range(1, 6):
                rank = await bed.start(f"sparkd-reuse-g{generation}-r0", "breeds")
                await rank.says("ready")
                await asyncio.sleep(0.2)
                rank.supervisor.kill("test")
                await rank.gone()
    finally:
        over.set()
        witnesses.join()
    assert not harmed, f"{len(harmed)} outsiders were signalled"


def main() -> None:
    try:
        Path("/proc/sys/kernel/pid_max").write_text(str(PID_MAX))
    except OSError:
        sys.exit(77)
    if Path("/proc/sys/kernel/pid_max").read_text().strip() != str(PID_MAX):
        sys.exit(77)
    burn_reserved()
    folder, scene = Path(sys.argv[1]), sys.argv[2]
    scenes = {
        "leader": lambda: reused(folder, sleeper),
        "session": lambda: reused(folder, abandoned_session),
        "churn": lambda: churn(folder),
    }
    asyncio.run(scenes[scene]())


if __name__ == "__main__":
    main()

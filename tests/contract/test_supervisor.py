"""A rank's supervisor with real processes: what falls, what is killed, and what is proved."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from sparkd.errors import Spent
from sparkd_agent.procfs import ProcFs
from sparkd_agent.rankfolder import RankFolder
from tests.bed.ranks import (
    Rank,
    RankBed,
    by_docker,
    by_systemd,
    kernel_tells,
    rank_bed,
    rank_spec,
    until,
)

NAME = f"sparkd-t{os.getpid()}-g1-r0"
"""Names are what ranks are found by: those of two test processes must differ."""
PROC = ProcFs()


def alive(pid: int) -> bool:
    stat = PROC.stat(pid)
    return stat is not None and not stat.ended


def numbers(line: str) -> list[int]:
    return [int(word) for word in line.split() if word.isdigit()]


def run(folder: Path, test, **limits: float) -> None:  # noqa: ANN001 - an async function of the bed
    async def within() -> None:
        async with rank_bed(folder, **limits) as bed:
            await test(bed)

    asyncio.run(within())


@pytest.mark.parametrize(
    ("behaviour", "code", "number", "said"),
    [
        (("exits", "0"), 0, None, "leader (pid {pid}) exited with 0"),
        (("exits", "1"), 1, None, "leader (pid {pid}) exited with 1"),
        (("aborts",), None, signal.SIGABRT, "leader (pid {pid}) was ended by signal 6"),
        (("exits_leaving_children", "3"), 3, None, "leader (pid {pid}) exited with 3"),
    ],
)
def test_any_unasked_end_of_the_leader_is_a_fall_with_its_exit_status(
    tmp_path: Path, behaviour: tuple[str, ...], code: int | None, number: int | None, said: str
) -> None:
    async def test(bed: RankBed) -> None:
        rank = await bed.start(NAME, *behaviour)
        view = await rank.gone()
        assert view.state == "gone"
        assert view.fell == said.format(pid=rank.leader)
        assert view.exit is not None
        assert (view.exit.process, view.exit.code, view.exit.signal) == ("leader", code, number)
        assert view.exit.how == "shim"
        assert not alive(rank.leader)
        assert not alive(rank.shim)

    run(tmp_path, test)


def test_children_left_behind_are_killed(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        rank = await bed.start(NAME, "exits_leaving_children", "0")
        (child,) = numbers(await rank.says("child"))
        await rank.gone()
        assert not alive(child)

    run(tmp_path, test)


def test_a_leader_that_cannot_be_executed_falls_with_the_reason(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        spec = rank_spec(NAME)
        rank = bed.supervise(await bed.launch(spec, "/no/such/engine"), spec)
        view = await rank.gone()
        assert view.fell == "cannot execute '/no/such/engine': No such file or directory"
        assert view.exit is not None
        assert view.exit.code == 127

    run(tmp_path, test)


def test_a_killed_worker_is_a_fall_although_its_leader_lives(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        rank = await bed.start(NAME, "worker")
        worker, helper = numbers(await rank.says("worker"))
        await asyncio.sleep(0.3)  # three looks
        os.kill(worker, signal.SIGKILL)
        view = await rank.gone()
        assert view.fell == f"VLLM::Worker_TP0 (pid {worker}) was ended by signal 9"
        assert view.exit is not None
        assert view.exit.how == "pidfd"
        assert "exit code -9" in view.lines, "the launcher's last words were awaited"
        leader = next(one for one in view.exits if one.process == "leader")
        assert leader.signal == signal.SIGKILL
        assert not any(map(alive, (worker, helper, rank.leader)))

    run(tmp_path, test, rank_young_scan_s=0.05)


@pytest.mark.skipif(not kernel_tells(), reason="PIDFD_INFO_EXIT came with Linux 6.15")
def test_of_two_that_are_found_ended_at_once_the_killed_one_is_named(tmp_path: Path) -> None:
    """A busy agent hears of both in one moment, in any order; the worker's exit with 0 explains nothing."""

    async def test(bed: RankBed) -> None:
        rank = await bed.start(NAME, "engine_and_worker")
        core, worker = numbers(await rank.says("core"))
        await rank.says("polite")
        await until(lambda: rank.view.processes == 3, "all of them to be seen")
        # No await in between: the loop learns nothing until both are dead.
        os.kill(worker, signal.SIGTERM)
        wait_dead(worker)
        os.kill(core, signal.SIGKILL)
        wait_dead(core)
        view = await rank.gone()
        assert view.fell == f"VLLM::EngineCore (pid {core}) was ended by signal 9"
        assert view.exit is not None
        assert view.exit.signal == signal.SIGKILL
        assert {(one.process, one.code) for one in view.exits} >= {("VLLM::Worker_TP0", 0)}

    run(tmp_path, test, rank_young_scan_s=0.05)


def wait_dead(pid: int) -> None:
    end = time.monotonic() + 30
    while alive(pid):
        assert time.monotonic() < end
        time.sleep(0.005)


def test_last_words_are_awaited_no_longer_than_until_they_are_written(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        words = "Worker proc VllmWorker-0 died unexpectedly (exit code: {}), shutting down executor."
        rank = await bed.start(NAME, "worker", "VLLM::Worker_TP0", words)
        worker, helper = numbers(await rank.says("worker"))
        await asyncio.sleep(0.3)
        os.kill(worker, signal.SIGKILL)
        view = await rank.gone()
        assert words.format(-9) in view.lines
        assert not any(map(alive, (worker, helper, rank.leader)))

    run(tmp_path, test, rank_young_scan_s=0.05, last_words_s=600.0)


def test_a_process_name_prefix_marks_essential_processes(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        rank = await bed.start(NAME, "worker", "mine::EngineCore", env={"VLLM_PROCESS_NAME_PREFIX": "mine"})
        worker, _ = numbers(await rank.says("worker"))
        await asyncio.sleep(0.3)
        os.kill(worker, signal.SIGKILL)
        assert (await rank.gone()).fell == f"mine::EngineCore (pid {worker}) was ended by signal 9"

    run(tmp_path, test, rank_young_scan_s=0.05)


def test_the_end_of_an_untitled_child_is_no_fall(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        rank = await bed.start(NAME, "worker")
        _, helper = numbers(await rank.says("worker"))
        await asyncio.sleep(0.2)
        os.kill(helper, signal.SIGKILL)
        await until(lambda: rank.view.processes == 2, "the helper's end to be seen")
        assert rank.view.state == "running"

    run(tmp_path, test, rank_young_scan_s=0.05)


def test_a_fork_of_a_worker_that_ends_is_no_fall(tmp_path: Path) -> None:
    """Seen with torch's inductor: a compiler, looked at between fork and exec, ended with 0."""

    async def test(bed: RankBed) -> None:
        rank = await bed.start(NAME, "worker_that_forks")
        (worker,) = numbers(await rank.says("worker"))
        await rank.says("fork")
        await until(lambda: rank.view.processes == 3, "the fork to be seen")
        await rank.says("over")
        await until(lambda: rank.view.processes == 2, "its end to be seen")
        assert rank.view.state == "running"
        os.kill(worker, signal.SIGKILL)
        assert (await rank.gone()).fell == f"VLLM::Worker_TP0 (pid {worker}) was ended by signal 9"

    run(tmp_path, test, rank_young_scan_s=0.05)


def test_a_killed_shim_is_a_fall_and_nothing_survives_it(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        rank = await bed.start(NAME, "worker")
        worker, helper = numbers(await rank.says("worker"))
        os.kill(rank.shim, signal.SIGKILL)
        view = await rank.gone()
        assert view.fell == f"shim (pid {rank.shim}) was ended by signal 9"
        assert not any(map(alive, (worker, helper, rank.leader)))

    run(tmp_path, test)


@pytest.mark.skipif(
    by_systemd() or by_docker(), reason="the shim's parent takes note of its end itself there"
)
@pytest.mark.skipif(not kernel_tells(), reason="PIDFD_INFO_EXIT came with Linux 6.15")
def test_how_a_shim_ended_is_waited_for_until_its_parent_has_taken_note(tmp_path: Path) -> None:
    """Seen with a busy init: everything was proved gone before, and nobody knew how it had ended."""

    async def test(bed: RankBed) -> None:
        rank = await bed.start(NAME, "wait")
        await rank.says("ready")
        await rank.state("running")
        bed.runtime.close()
        os.kill(rank.shim, signal.SIGKILL)
        asyncio.get_running_loop().call_later(0.5, os.waitpid, rank.shim, 0)
        assert (await rank.gone()).fell == f"shim (pid {rank.shim}) was ended by signal 9"

    run(tmp_path, test)


def test_a_killed_shim_is_the_cause_also_of_its_leaders_end(tmp_path: Path) -> None:
    """systemd ends what is left of a unit whose main process was killed, before the agent can look."""

    async def test(bed: RankBed) -> None:
        rank = await bed.start(NAME, "wait")
        await rank.says("ready")
        await rank.state("running")
        os.kill(rank.shim, signal.SIGKILL)
        os.kill(rank.leader, signal.SIGTERM)
        end = time.monotonic() + 10
        while alive(rank.shim) or alive(rank.leader):  # without the loop, so it hears of both at once
            assert time.monotonic() < end
            time.sleep(0.001)
        assert (await rank.gone()).fell == f"shim (pid {rank.shim}) was ended by signal 9"

    run(tmp_path, test)


@pytest.mark.parametrize("shim_too", [False, True])
def test_daemons_in_sessions_of_their_own_are_found(tmp_path: Path, shim_too: bool) -> None:
    async def test(bed: RankBed) -> None:
        rank = await bed.start(NAME, "daemons")
        await until(lambda: sum(text.startswith("daemon") for text in rank.texts()) == 3, "three daemons")
        daemons = [numbers(text)[0] for text in rank.texts() if text.startswith("daemon")]
        if shim_too:
            os.kill(rank.shim, signal.SIGKILL)  # their ancestry is lost with it
        else:
            rank.supervisor.kill("test")
        await rank.gone()
        assert not any(map(alive, daemons))

    run(tmp_path, test)


def test_a_rank_that_breeds_is_ended(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        rank = await bed.start(NAME, "breeds")
        await rank.says("ready")
        rank.supervisor.kill("test")
        await rank.gone()
        assert not [pid for pid in PROC.pids() if PROC.rank_name(pid) == NAME]

    run(tmp_path, test)


def test_zombies_hold_nothing_up(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        rank = await bed.start(NAME, "zombies")
        await rank.says("ready")
        rank.supervisor.kill("test")
        await rank.gone()
        assert not [one for one in PROC.stats().values() if one.session == rank.leader]

    run(tmp_path, test)


def test_terminate_lets_the_leader_end_and_asks_nothing_twice(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        rank = await bed.start(NAME, "wait")
        await rank.says("ready")
        rank.supervisor.terminate(20.0, "down")
        rank.supervisor.terminate(20.0, "down again")
        view = await rank.gone()
        assert (view.fell, view.reason) == (None, "down")
        assert view.exits[0].signal == signal.SIGTERM

    run(tmp_path, test)


def test_a_leader_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        rank = await bed.start(NAME, "ignores_sigterm")
        await rank.says("ready")
        rank.supervisor.terminate(0.3, "down")
        view = await rank.gone()
        assert view.fell is None
        assert view.exits[0].signal == signal.SIGKILL

    run(tmp_path, test)


def test_a_kill_during_the_grace_is_at_once(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        rank = await bed.start(NAME, "ignores_sigterm")
        await rank.says("ready")
        rank.supervisor.terminate(600.0, "down")
        rank.supervisor.kill("memory")
        assert (await rank.gone()).state == "gone"

    run(tmp_path, test)


def test_for_a_node_without_memory_what_is_known_is_killed_before_anything_is_looked_at(
    tmp_path: Path,
) -> None:
    async def test(bed: RankBed) -> None:
        rank = await bed.start(NAME, "worker", "VLLM::Worker_TP0")
        worker, helper = numbers(await rank.says("worker"))
        await until(lambda: len(rank.supervisor.model_processes()) == 1, "the worker to be seen")
        rank.supervisor.kill("memory", at_once=True)
        wait_dead(rank.leader)  # the loop stands still meanwhile: nobody looks
        wait_dead(worker)
        view = await rank.gone()
        assert (view.state, view.reason, view.fell) == ("gone", "memory", None)
        assert not alive(helper), "what nobody held is found by the passes that follow"
        assert [one.process for one in view.exits] == ["leader"], "what we killed is no news"

    run(tmp_path, test, rank_young_scan_s=0.05)


def test_a_stopped_process_is_seen_and_still_ends(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        rank = await bed.start(NAME, "worker")
        worker, _ = numbers(await rank.says("worker"))
        os.kill(worker, signal.SIGSTOP)
        await until(lambda: rank.view.stopped, "the stopped worker to be seen")
        (stopped,) = rank.view.stopped
        assert stopped.pid == worker
        assert stopped.title.startswith("VLLM::Worker_TP0")
        os.kill(worker, signal.SIGCONT)
        await until(lambda: not rank.view.stopped, "it to run again")
        os.kill(worker, signal.SIGSTOP)
        rank.supervisor.kill("test")
        await rank.gone()
        assert not alive(worker)

    run(tmp_path, test, rank_young_scan_s=0.05)


def test_a_stopped_shim_does_not_keep_its_rank(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        rank = await bed.start(NAME, "wait")
        await rank.says("ready")
        os.kill(rank.shim, signal.SIGSTOP)
        rank.supervisor.kill("test")
        await rank.gone()
        assert not alive(rank.shim)

    run(tmp_path, test, shim_exit_s=0.2)


def test_the_shim_ignores_what_ends_others(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        rank = await bed.start(NAME, "wait")
        await rank.says("ready")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(rank.shim, number)
        os.kill(rank.leader, signal.SIGTERM)
        assert (await rank.gone()).exits[0].how == "shim"

    run(tmp_path, test)


def test_stacks_are_asked_of_those_only_that_have_a_handler(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        rank = await bed.start(NAME, "handles_usr2")
        (child,) = numbers(await rank.says("child"))
        await rank.says("ready")
        ((pid, _),) = rank.supervisor.traceable()
        assert pid == rank.leader
        assert rank.supervisor.stack(pid)
        await rank.says("stacks")
        assert alive(child)

    run(tmp_path, test)


def test_what_cannot_be_killed_is_named_and_tried_again(tmp_path: Path) -> None:
    """The shim counts too: here it is stopped and its end put off, as a hanging disk would do it."""

    async def test(bed: RankBed) -> None:
        rank = await bed.start(NAME, "wait")
        await rank.says("ready")
        os.kill(rank.shim, signal.SIGSTOP)
        rank.supervisor.kill("test")
        await rank.state("unkillable")
        assert f"pid {rank.shim} (" in rank.view.remains[0]
        assert "state T in do_signal_stop" in rank.view.remains[0]
        os.kill(rank.shim, signal.SIGCONT)
        view = await rank.gone()
        assert (view.state, view.remains) == ("gone", ())

    run(tmp_path, test, shim_exit_s=600.0, kill_proof_s=0.2, unkillable_repeat_s=0.05)


def test_a_name_is_started_once(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        rank = await bed.start(NAME, "exits", "0")
        with pytest.raises(Spent, match="was started before"):
            await bed.launch(rank_spec(NAME, "exits", "0"))
        await rank.gone()
        with pytest.raises(Spent):
            await bed.launch(rank_spec(NAME, "exits", "0"))

    run(tmp_path, test)


def test_usage_is_counted_over_all_processes(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        rank = await bed.start(NAME, "worker")
        await rank.says("worker")
        await until(lambda: rank.view.processes == 3, "all three processes")
        assert rank.view.rss_bytes > 10 << 20
        assert rank.view.rchar_bytes > 1 << 10
        assert rank.view.cpu_seconds >= 0
        assert not rank.view.compiling

    run(tmp_path, test)


# Adoption: another supervisor, in another life of the agent, finds what the first one started. ---------


async def adopt(bed: RankBed, name: str) -> Rank:
    (handle,) = [one for one in bed.runtime.list() if one.name == name]
    return bed.supervise(handle, rank_spec(name))


_START = """
import asyncio, sys
from pathlib import Path
from tests.bed.ranks import rank_bed, rank_spec
from sparkd.records.defaults import DEFAULTS
from sparkd_agent.procfs import ProcFs
from tests.bed.ranks import RankBed

async def main():
    bed = RankBed(Path(sys.argv[1]), DEFAULTS, Path(sys.argv[1]))
    handle = await bed.launch(rank_spec(sys.argv[2], *sys.argv[3:]))
    print(handle.shim.pid, handle.leader.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def start_elsewhere(folder: Path, *args: str) -> tuple[int, int]:
    """An agent that starts a rank and is killed. Returns the pids of the rank's shim and leader."""
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _START, str(folder), NAME, *args, stdout=asyncio.subprocess.PIPE
    )
    assert agent.stdout is not None
    shim, leader = numbers((await agent.stdout.readline()).decode())
    agent.kill()
    await agent.wait()
    return shim, leader


def test_a_rank_outlives_its_agent_and_is_adopted(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        shim, leader = await start_elsewhere(tmp_path, "worker")
        rank = await adopt(bed, NAME)
        assert (rank.shim, rank.leader) == (shim, leader)
        await rank.state("running")
        worker, _ = numbers(await rank.says("worker"))
        await until(lambda: rank.view.processes == 3, "all three processes")
        os.kill(worker, signal.SIGKILL)
        view = await rank.gone()
        assert view.fell == f"VLLM::Worker_TP0 (pid {worker}) was ended by signal 9"
        assert not any(map(alive, (shim, leader)))

    run(tmp_path, test)


def test_a_rank_that_died_while_no_agent_lived_is_noticed_with_its_exit_status(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        shim, leader = await start_elsewhere(tmp_path, "exits", "7")
        await until(lambda: not alive(shim), "the rank to end by itself")
        view = await (await adopt(bed, NAME)).gone()
        assert view.fell == f"leader (pid {leader}) exited with 7"
        assert view.lines == ("last words",)

    run(tmp_path, test)


def test_orphans_of_a_rank_that_lost_leader_and_shim_are_found(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        shim, leader = await start_elsewhere(tmp_path, "worker")
        line = await until_said(tmp_path, "worker")
        worker, helper = numbers(line)
        os.kill(shim, signal.SIGKILL)
        os.kill(leader, signal.SIGKILL)
        await until(lambda: PROC.stat(leader) is None, "the last trace of the leader")
        await (await adopt(bed, NAME)).gone()
        assert not any(map(alive, (worker, helper)))

    run(tmp_path, test)


async def until_said(folder: Path, text: str) -> str:
    from sparkd_agent.logs import RankLog

    log = RankLog(folder / "ranks" / NAME / "log")

    def said() -> list[str]:
        return [line.text for line in log.last(100) if line.text.startswith(text)]

    await until(said, text)
    return said()[0]


def test_a_rank_of_an_earlier_boot_is_gone(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        rank = await bed.start(NAME, "exits", "0")
        await rank.gone()
        record = rank.folder.path / "shim.json"
        record.write_text(record.read_text().replace(PROC.boot_id(), "another-boot"))
        view = await (await adopt(bed, NAME)).gone()
        assert view.state == "gone"
        assert view.fell is not None

    run(tmp_path, test)


def test_a_folder_without_a_record_is_a_rank_that_was_never_started(tmp_path: Path) -> None:
    async def test(bed: RankBed) -> None:
        folder = RankFolder(tmp_path / "ranks" / NAME)
        folder.create()
        if by_systemd():
            folder.unit.touch()  # the agent died before it asked for the unit
        if by_docker():
            folder.container.touch()
        view = await (await adopt(bed, NAME)).gone()
        assert view.fell == "its shim was never started"

    run(tmp_path, test)

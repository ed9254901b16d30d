"""The kill path asks whose process it is *after* it got hold of it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from sparkd_agent.kill import kill_exactly, kill_pass, survivors
from sparkd_agent.members import Marks, RankMembers
from sparkd_agent.procfs import ProcessRef, ProcFs, Stat

PROC = ProcFs()


@dataclass
class OldList:
    """A target whose list was made before the pid changed hands."""

    listed: list[Stat]
    owned: bool

    def kill_all(self) -> None:
        pass

    def members(self) -> list[Stat]:
        return self.listed

    def owns(self, pid: int) -> bool:
        return self.owned


@pytest.fixture
def outsider() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def stat_of(process: "subprocess.Popen[bytes]") -> Stat:
    stat = PROC.stat(process.pid)
    assert stat is not None
    return stat


def test_a_listed_pid_that_is_not_the_ranks_any_more_is_spared(outsider: "subprocess.Popen[bytes]") -> None:
    kill_pass(OldList([stat_of(outsider)], owned=False))
    with pytest.raises(subprocess.TimeoutExpired):
        outsider.wait(0.2)


def test_a_listed_pid_that_is_the_ranks_is_killed(outsider: "subprocess.Popen[bytes]") -> None:
    left = kill_pass(OldList([stat_of(outsider)], owned=True))
    assert [stat.ref for stat in left] == [stat_of(outsider).ref]
    assert outsider.wait(10) == -signal.SIGKILL


def test_held_descriptors_are_signalled_and_dead_ones_do_no_harm(outsider: "subprocess.Popen[bytes]") -> None:
    pidfd = os.pidfd_open(outsider.pid)
    try:
        assert kill_pass(OldList([], owned=True), [pidfd]) == []
        assert outsider.wait(10) == -signal.SIGKILL
        kill_pass(OldList([], owned=True), [pidfd])
    finally:
        os.close(pidfd)


def test_a_process_with_the_pid_but_another_start_is_spared(outsider: "subprocess.Popen[bytes]") -> None:
    ref = stat_of(outsider).ref
    assert not kill_exactly(PROC, ProcessRef(ref.pid, ref.starttime - 1))
    assert outsider.poll() is None
    assert kill_exactly(PROC, ref)
    assert outsider.wait(10) == -signal.SIGKILL


def test_a_rank_of_the_same_name_under_another_agent_is_spared() -> None:
    """Two local sets on one machine may both run a deployment called `tiny`."""
    env = {"SPARKD_RANK": "sparkd-tiny-g1-r0", "SPARKD_RANK_FOLDER": "/another/agent/ranks/sparkd-tiny-g1-r0"}
    other = subprocess.Popen(["sleep", "60"], env=env, start_new_session=True)
    try:
        target = RankMembers(ProcFs(), Marks("sparkd-tiny-g1-r0", "/this/agent/ranks/x", None, None, ()))
        assert kill_pass(target) == []
        assert other.poll() is None
        own = RankMembers(ProcFs(), Marks("sparkd-tiny-g1-r0", env["SPARKD_RANK_FOLDER"], None, None, ()))
        while kill_pass(own):
            pass
        assert other.wait(10) == -9
    finally:
        other.kill()
        other.wait()


def test_a_survivor_is_named_with_state_and_place(outsider: "subprocess.Popen[bytes]") -> None:
    outsider.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, outsider.pid, os.WSTOPPED)
    (told,) = survivors(PROC, [replace(stat_of(outsider), state="D")])
    assert str(told).startswith(f"pid {outsider.pid} ({sys.executable} -c import time")
    assert " state D in do_signal_stop" in str(told)

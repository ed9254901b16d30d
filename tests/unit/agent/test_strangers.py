"""Laid-out /proc folders: what is read again, and what never has to be."""

import shutil
from pathlib import Path

import pytest

from sparkd_agent.procfs import ProcFs
from sparkd_agent.strangers import Strangers

MEMBER = 30


class Machine:
    """init 1, agent 10, shim 20 below it, a rank's process 30 below the shim."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.put(1, 0)
        self.put(10, 1)
        self.put(20, 10)
        self.put(MEMBER, 20)
        self.procfs = ProcFs(root)
        self.strangers = Strangers(self.procfs)

    def put(self, pid: int, ppid: int) -> None:
        """Another process, also where its pid was another's: the kernel numbers its folder anew."""
        folder = self.root / str(pid)
        if folder.exists():
            aside = folder.rename(self.root / f"was-{pid}")
            folder.mkdir()
            shutil.rmtree(aside)
        else:
            folder.mkdir()
        numbers = " ".join(["0"] * 18)
        (folder / "stat").write_text(f"{pid} (a name) S {ppid} {pid} {pid} {numbers}\n")

    def end(self, pid: int) -> None:
        shutil.rmtree(self.root / str(pid))

    def look(self, *members: int) -> set[int]:
        stats = self.strangers.others()
        self.strangers.learn(stats, members)
        return set(stats)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_stranger_is_read_once_and_a_member_each_time(machine: Machine) -> None:
    assert machine.look(MEMBER) == {1, 10, 20, MEMBER}
    assert machine.look(MEMBER) == {MEMBER}
    assert machine.look(MEMBER) == {MEMBER}


def test_who_is_new_is_read(machine: Machine) -> None:
    machine.look(MEMBER)
    machine.put(40, MEMBER)
    machine.put(50, 10)
    assert machine.look(MEMBER, 40) == {MEMBER, 40, 50}
    assert machine.look(MEMBER, 40) == {MEMBER, 40}


def test_a_strangers_pid_that_is_another_process_by_now_is_read(machine: Machine) -> None:
    machine.put(50, 10)
    machine.look(MEMBER)
    machine.put(50, MEMBER)
    assert machine.look(MEMBER, 50) == {MEMBER, 50}


def test_whose_parent_is_gone_is_not_taken_for_a_stranger(machine: Machine) -> None:
    """Its parent 35 ended between the listing and the reading, and may have been the rank's."""
    machine.put(40, 35)
    assert 40 in machine.look(MEMBER)
    machine.put(40, 20)
    assert machine.look(MEMBER, 40) == {MEMBER, 40}


def test_the_gone_are_forgotten(machine: Machine) -> None:
    machine.put(50, 10)
    machine.look(MEMBER)
    machine.end(50)
    machine.look(MEMBER)
    machine.put(50, 20)
    assert 50 in machine.look(MEMBER, 50)


def test_parents_in_a_ring_are_followed_once_round(machine: Machine) -> None:
    """Read at two times, a pid was reused in between."""
    machine.put(60, 61)
    machine.put(61, 60)
    assert {60, 61} <= machine.look(MEMBER)
    assert {60, 61} <= machine.look(MEMBER)

"""The systemd runtime with a systemd of the test: what it asks, whom, and what it makes of the answers.

Real shims, but no PID 1 that is systemd: what needs one is in `tests/lab/inside/rank_units.py`.
"""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sparkd.errors import RankNotStarted, ServiceManagerUnreachable, Spent
from sparkd.records.defaults import DEFAULTS
from sparkd_agent.procfs import ProcFs
from sparkd_agent.rankfolder import RankFolder
from sparkd_agent.runtime.base import make_launch
from sparkd_agent.runtime.manager import Manager, UnitState
from sparkd_agent.runtime.systemd import SystemdRuntime
from sparkd_agent.runtime.unit import RankUnit, Stdio
from tests.bed.ranks import rank_spec

NAME = "sparkd-played-g1-r0"
GROUP = "/sparkd.slice/sparkd-ranks.slice/sparkd-played-g1-r0.service"


class Away:
    """Nobody is there to be asked."""

    def start(self, unit: RankUnit, stdio: Stdio) -> None:
        raise ServiceManagerUnreachable("away")

    def units(self) -> list[UnitState]:
        raise ServiceManagerUnreachable("away")

    def tidy(self, rank: str) -> None:
        raise ServiceManagerUnreachable("away")


class Played:
    """Executes what a unit executes, and says of it what the test wants."""

    def __init__(self, *units: UnitState, deaf: bool = False) -> None:
        self.listed = list(units)
        self.deaf = deaf
        self.asked: list[RankUnit] = []
        self.tidied: list[str] = []
        self.kept: list[int] = []
        """PID 1 has descriptors of its own."""
        self.children: list[subprocess.Popen[bytes]] = []

    def start(self, unit: RankUnit, stdio: Stdio) -> None:
        self.asked.append(unit)
        self.kept = [os.dup(stdio.spec), os.dup(stdio.answer)]
        if not self.deaf:
            started = subprocess.Popen(
                unit.command, stdin=stdio.spec, stdout=stdio.answer, stderr=stdio.errors, env={}
            )
            self.children.append(started)

    def units(self) -> list[UnitState]:
        return self.listed

    def tidy(self, rank: str) -> None:
        self.tidied.append(rank)


def a_unit(ranks: Path, **changes: object) -> UnitState:
    state = UnitState(NAME, "active", 0, GROUP, str(ranks / NAME))
    return replace(state, **changes)  # type: ignore[arg-type] - fields by name


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    return tmp_path / "ranks"


@pytest.fixture
def played() -> Iterator[Played]:
    one = Played()
    yield one
    for child in one.children:
        child.wait(10)
    for fd in one.kept:
        os.close(fd)


def runtime(ranks: Path, *managers: Manager, **limits: float) -> SystemdRuntime:
    return SystemdRuntime(ranks, ProcFs(), replace(DEFAULTS, **limits), managers)  # type: ignore[arg-type]


def start(one: SystemdRuntime) -> None:
    spec = rank_spec(NAME, secrets={"VLLM_API_KEY": "s3cret"})
    launch = make_launch(spec, ("/bin/true",), agent_env={}, rank_env={}, cwd="/")
    asyncio.run(one.start(spec, launch))


def folder_with_mark(ranks: Path) -> RankFolder:
    folder = RankFolder(ranks / NAME)
    folder.create()
    folder.unit.touch()
    return folder


# Starting.


def test_a_unit_without_a_control_group_is_no_rank(ranks: Path, played: Played) -> None:
    """Where this test's own processes are in the root group, in which systemd leaves no unit."""
    groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    if any(path != "/" for _, kind, path in groups if kind in {"", "name=systemd"}):
        pytest.skip("this process has a control group of its own")
    with pytest.raises(RankNotStarted, match="systemd gave the shim no control group"):
        start(runtime(ranks, played))
    assert played.tidied == [NAME]
    (unit,) = played.asked
    assert "s3cret" not in repr(unit)


def test_the_first_that_can_be_reached_is_asked(ranks: Path, played: Played) -> None:
    played.deaf = True
    with pytest.raises(RankNotStarted):
        start(runtime(ranks, Away(), played, Away(), shim_start_s=0.1))
    assert len(played.asked) == 1


def test_with_nobody_to_ask_the_name_is_spent_all_the_same(ranks: Path) -> None:
    one = runtime(ranks, Away())
    with pytest.raises(RankNotStarted, match="no unit could be asked for: away"):
        start(one)
    with pytest.raises(Spent):
        start(one)


def test_what_was_given_up_finds_no_spec_later(ranks: Path, played: Played) -> None:
    played.deaf = True
    with pytest.raises(RankNotStarted, match="no sign of life"):
        start(runtime(ranks, played, shim_start_s=0.1))
    assert os.fstat(played.kept[0]).st_size == 0, "PID 1 may have hung, and may still execute the shim"
    assert played.tidied == [NAME]


def test_what_systemd_knows_of_a_failed_start_is_told(ranks: Path, played: Played) -> None:
    played.deaf = True
    played.listed = [a_unit(ranks, active="failed", result="exit-code, status 203")]
    with pytest.raises(RankNotStarted, match=r"\(its unit: exit-code, status 203\)"):
        start(runtime(ranks, played, shim_start_s=0.1))


# Looking.


@pytest.mark.parametrize(
    ("state", "coming_up"),
    [
        ({"active": "activating"}, True),
        ({"active": "active"}, True),
        ({"active": "inactive", "queued": True}, True),
        ({"active": "inactive"}, False),
        ({"active": "failed"}, False),
        (None, False),
    ],
)
def test_a_folder_without_a_record_is_waited_for_while_its_unit_may_still_come(
    ranks: Path, state: dict[str, object] | None, *, coming_up: bool
) -> None:
    folder_with_mark(ranks)
    units = [] if state is None else [a_unit(ranks, **state)]
    (handle,) = runtime(ranks, Played(*units)).list()
    assert (handle.name, handle.shim, handle.coming_up) == (NAME, None, coming_up)


def test_while_nobody_can_say_it_is_waited_for(ranks: Path) -> None:
    folder_with_mark(ranks)
    (handle,) = runtime(ranks, Away()).list()
    assert handle.coming_up


def test_a_folder_of_a_plain_process_is_another_runtimes(ranks: Path) -> None:
    RankFolder(ranks / NAME).create()
    assert runtime(ranks, Played()).list() == []


def test_a_unit_without_a_folder_is_found_by_its_process(ranks: Path) -> None:
    (handle,) = runtime(ranks, Played(a_unit(ranks, main_pid=os.getpid()))).list()
    assert handle.shim == ProcFs().ref(os.getpid())
    assert handle.boot == ProcFs().boot_id()
    assert handle.folder == str(ranks / NAME)


@pytest.mark.parametrize(
    "other",
    [{"folder": "/var/lib/other/ranks/sparkd-played-g1-r0"}, {"folder": None}, {"active": "failed"}],
)
def test_units_of_others_and_ended_ones_without_a_folder_are_left_alone(
    ranks: Path, other: dict[str, object]
) -> None:
    assert runtime(ranks, Played(a_unit(ranks, main_pid=1, **other))).list() == []


# Tidying.


def test_tidying_up_needs_nobody_to_be_there(ranks: Path) -> None:
    folder_with_mark(ranks)
    one = runtime(ranks, Away())
    (handle,) = one.list()
    asyncio.run(one.stop(handle))
    one.forget(NAME)
    assert list(ranks.iterdir()) == []

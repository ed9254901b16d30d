"""A rank's control group, on trees that look like each kind of hierarchy."""

from pathlib import Path

import pytest

from sparkd_agent.cgroup import Cgroup, folder_of

GROUP = "/sparkd.slice/sparkd-ranks.slice/sparkd-tiny-g1-r0.service"


def group(folder: Path, *pids: int, kill: bool = False) -> Path:
    folder.mkdir(parents=True)
    (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    if kill:
        (folder / "cgroup.kill").touch()
    return folder


@pytest.mark.parametrize("hierarchy", ["", "unified", "systemd"])
def test_the_group_is_found_in_each_kind_of_hierarchy(tmp_path: Path, hierarchy: str) -> None:
    group(tmp_path / hierarchy / "top")
    (tmp_path / hierarchy / "cgroup.procs").touch()
    assert folder_of(GROUP, str(tmp_path)) == str(tmp_path / hierarchy / GROUP.lstrip("/"))


def test_version_2_beside_version_1_is_preferred(tmp_path: Path) -> None:
    group(tmp_path / "systemd")
    group(tmp_path / "unified")
    assert folder_of(GROUP, str(tmp_path)) == f"{tmp_path}/unified{GROUP}"


def test_where_there_are_no_groups_there_is_none(tmp_path: Path) -> None:
    assert folder_of(GROUP, str(tmp_path)) is None


@pytest.mark.parametrize("nothing", ["", "/"])
def test_a_unit_without_a_group_has_none_and_the_root_is_nobodys(tmp_path: Path, nothing: str) -> None:
    (tmp_path / "cgroup.procs").write_text("1\n")
    assert folder_of(nothing, str(tmp_path)) is None


def test_everything_below_belongs_to_it(tmp_path: Path) -> None:
    unit = group(tmp_path / "unit", 10)
    group(unit / "rank", 11, 12)
    group(unit / "rank" / "made-by-the-rank", 13)
    assert Cgroup(str(unit)).pids() == {10, 11, 12, 13}


def test_the_kernel_is_asked_to_kill_the_rank_and_not_its_shim(tmp_path: Path) -> None:
    unit = group(tmp_path / "unit", 10, kill=True)
    rank = group(unit / "rank", 11, kill=True)
    one = Cgroup(str(unit))
    assert one.kill()
    assert (rank / "cgroup.kill").read_text() == "1"
    assert (unit / "cgroup.kill").read_text() == "", "that would end the witness of the rank's exit"
    one.close()
    one.close()
    assert not one.kill()


def test_the_file_to_kill_by_is_open_before_it_is_needed(tmp_path: Path) -> None:
    unit = group(tmp_path / "unit", 10)
    rank = group(unit / "rank", 11, kill=True)
    one = Cgroup(str(unit))
    (rank / "cgroup.kill").rename(tmp_path / "elsewhere")
    assert one.kill()
    assert (tmp_path / "elsewhere").read_text() == "1"
    one.close()


def test_version_1_offers_no_such_thing(tmp_path: Path) -> None:
    unit = group(tmp_path / "unit", 10)
    group(unit / "rank", 11)
    assert not Cgroup(str(unit)).kill()


def test_a_group_that_is_gone_is_empty(tmp_path: Path) -> None:
    assert Cgroup(str(tmp_path / "gone")).pids() == set()

"""Stored formats of the shim: what an older one wrote, a newer agent must read."""

import shutil
from pathlib import Path

import pytest

from sparkd.clock import Instant
from sparkd.errors import Spent, StateCorrupt, StateTooNew
from sparkd_agent.logs import RankLog
from sparkd_agent.procfs import ProcessRef
from sparkd_agent.rankfolder import RankFolder
from sparkd_agent.runtime.base import RankHandle
from sparkd_agent.runtime.process import ProcessRuntime

FORMAT_1 = Path(__file__).parents[2] / "fixtures" / "shim-format-1"
NAME = "sparkd-demo-g3-r1"


def test_format_1_is_read() -> None:
    folder = RankFolder(FORMAT_1 / NAME)
    assert folder.handle() == RankHandle(
        name=NAME,
        folder=str(FORMAT_1 / NAME),
        boot="cdf2614e-b6e7-4b64-97ce-74f25a2530fe",
        started=Instant(1315.073491259, 1796033613.3024168),
        shim=ProcessRef(9488, 131504),
        leader=ProcessRef(9489, 131507),
        pipes=(17959, 17960),
    )
    record = folder.exit_record()
    assert record is not None
    assert (record.code, record.signal, record.error, record.lost_bytes) == (None, 9, None, 12)
    lines = RankLog(folder.log).last(3)
    assert [(line.stream, line.text) for line in lines[:2]] == [("stdout", "hello"), ("stderr", "on stderr")]
    assert lines[2].stream == "shim"


@pytest.fixture
def folder(tmp_path: Path) -> RankFolder:
    shutil.copytree(FORMAT_1 / NAME, tmp_path / NAME)
    return RankFolder(tmp_path / NAME)


def rewrite(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


def test_fields_that_a_later_shim_adds_do_no_harm(folder: RankFolder) -> None:
    rewrite(folder.path / "shim.json", '"format": 1', '"format": 1, "cgroup": "/x"')
    assert folder.handle().leader == ProcessRef(9489, 131507)


def test_a_later_format_is_refused_by_name(folder: RankFolder) -> None:
    rewrite(folder.path / "shim.json", '"format": 1', '"format": 2')
    with pytest.raises(StateTooNew, match="format 2, this agent reads up to 1"):
        folder.handle()
    with pytest.raises(StateTooNew):
        ProcessRuntime(folder.path.parent).list()


@pytest.mark.parametrize("body", ["", "{", '{"format": 1}', "[]", '{"format": 1, "name": 5}'])
def test_a_corrupt_record_is_said_so_and_listed_as_a_rank_without_processes(
    folder: RankFolder, body: str
) -> None:
    (folder.path / "shim.json").write_text(body)
    with pytest.raises(StateCorrupt, match="cannot be read"):
        folder.handle()
    (handle,) = ProcessRuntime(folder.path.parent).list()
    assert (handle.name, handle.shim, handle.leader) == (NAME, None, None)


def test_a_folder_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    folder = RankFolder(tmp_path / "ranks" / NAME)
    folder.create()
    assert folder.path.stat().st_mode & 0o777 == 0o700
    with pytest.raises(Spent, match=NAME):
        folder.create()


def test_other_folders_are_no_ranks_and_forgetting_removes_one(folder: RankFolder) -> None:
    ranks = folder.path.parent
    (ranks / "lost+found").mkdir()
    runtime = ProcessRuntime(ranks)
    assert [handle.name for handle in runtime.list()] == [NAME]
    runtime.forget("../" + ranks.name)
    runtime.forget(NAME)
    runtime.forget(NAME)
    assert runtime.list() == []
    assert (ranks / "lost+found").is_dir()


def test_nobody_holds_the_lock_of_a_dead_rank(folder: RankFolder) -> None:
    import os

    assert not folder.locked()
    held = folder.lock()
    assert folder.locked()
    os.close(held)
    assert not folder.locked()

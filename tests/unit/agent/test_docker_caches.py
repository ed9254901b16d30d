"""Folders that become a rank's own by root's hand."""

import os
from pathlib import Path

import pytest

from sparkd_agent.account import Account
from sparkd_agent.runtime.docker import make_own

UID = 4711 if os.geteuid() == 0 else os.geteuid()
GID = 4712 if os.geteuid() == 0 else os.getegid()
ACCOUNT = Account("anybody", UID, GID, "anybody", (GID,), "/home/anybody")


def owner(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_uid, found.st_gid


def test_they_are_made_once_and_given_away(tmp_path: Path) -> None:
    for _ in range(2):
        make_own(tmp_path / "abc", ("home", "triton"), ACCOUNT)
    folders = [tmp_path / "abc", tmp_path / "abc/home", tmp_path / "abc/triton"]
    assert [owner(path) for path in folders] == [(UID, GID)] * 3
    assert [path.stat().st_mode & 0o777 for path in folders] == [0o700] * 3


@pytest.mark.parametrize("link", ["abc", "abc/triton"])
def test_a_link_in_the_place_of_one_is_refused(tmp_path: Path, link: str) -> None:
    others = tmp_path / "others"
    others.mkdir(mode=0o755)
    before = owner(others)
    (tmp_path / link).parent.mkdir(exist_ok=True)
    (tmp_path / link).symlink_to(others)
    with pytest.raises(OSError, match=link.rpartition("/")[2]):
        make_own(tmp_path / "abc", ("home", "triton"), ACCOUNT)
    assert owner(others) == before
    assert list(others.iterdir()) == []

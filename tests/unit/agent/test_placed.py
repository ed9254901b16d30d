import base64
import os
from pathlib import Path

import pytest

from sparkd.records.defaults import DEFAULTS
from sparkd.records.intent import files_folder
from sparkd_agent.account import Account
from sparkd_agent.placed import FOR_OTHERS, files_root, place_files


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "state" / "files"


def test_files_lie_where_the_plan_says_read_only_and_whole(root: Path) -> None:
    files = {"chat.jinja": encoded(b"{{ x }}\xff"), "b.json": encoded(b"")}
    before = os.umask(0o077)
    try:
        place_files(root, files)
    finally:
        os.umask(before)
    folder = Path(files_folder(str(root), files))
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {
        "chat.jinja": b"{{ x }}\xff",
        "b.json": b"",
    }
    assert [oct(place.stat().st_mode & 0o777) for place in (root, folder, folder / "b.json")] == [
        "0o755",
        "0o755",
        "0o444",
    ]


def test_another_content_takes_the_place_of_the_last_and_a_changed_one_is_put_right(root: Path) -> None:
    one, two = {"a": encoded(b"1")}, {"a": encoded(b"2")}
    place_files(root, one)
    first = Path(files_folder(str(root), one))
    (first / "a").chmod(0o644)
    (first / "a").write_bytes(b"forged")
    place_files(root, one)
    assert (first / "a").read_bytes() == b"1"
    (root / ".half").mkdir()  # of a start that was interrupted
    place_files(root, two)
    assert [place.name for place in root.iterdir()] == [Path(files_folder(str(root), two)).name]


@pytest.mark.parametrize("name", ["../a", "a/b", ".a", "", "a" * 65])
def test_no_name_leads_out_of_the_folder(root: Path, name: str) -> None:
    with pytest.raises(ValueError, match="not the names of files"):
        place_files(root, {name: encoded(b"x")})
    assert not root.exists()


def test_what_is_too_large_or_no_base64_is_refused(root: Path) -> None:
    with pytest.raises(ValueError, match="more than"):
        place_files(root, {"a": encoded(b"x" * (DEFAULTS.files_bytes + 1))})
    with pytest.raises(ValueError, match=r"[Bb]ase64"):
        place_files(root, {"a": "no base64!"})


def test_nothing_is_made_for_a_profile_without_files(root: Path) -> None:
    place_files(root, {})
    assert not root.exists()


def test_ranks_of_another_user_can_reach_them(tmp_path: Path) -> None:
    account = Account("ranks", 1001, 1001, "ranks", (1001,), "/home/ranks")
    assert files_root(tmp_path, account) == FOR_OTHERS
    assert files_root(tmp_path, None) == tmp_path / "files"

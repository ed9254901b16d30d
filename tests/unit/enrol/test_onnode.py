import ast
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

from sparkd.enrol.onnode import MODULES, change, script
from sparkd.enrol.onnode.place import HERE, Refusal


@pytest.fixture(autouse=True)
def here(tmp_path: Path) -> Iterator[Path]:
    HERE.root = tmp_path
    yield tmp_path
    HERE.root = Path("/")


@pytest.mark.parametrize("name", MODULES)
def test_an_old_python_can_read_it(name: str) -> None:
    source = resources.files("sparkd.enrol.onnode").joinpath(f"{name}.py").read_text()
    ast.parse(source, feature_version=(3, 9))
    assert "from __future__ import annotations" in source


def test_it_is_one_program_with_all_of_its_modules() -> None:
    compile(script(), "node", "exec")
    for name in MODULES:
        assert f"sparkd.enrol.onnode.{name}" in script().decode()


@pytest.mark.parametrize(
    "name", ["etc/passwd", "/etc/shadow", "../etc/sparkd/agent.toml", "etc/sparkd/other", ""]
)
def test_no_file_but_ours_is_written(here: Path, name: str) -> None:
    with pytest.raises(Refusal):
        change.write({"name": name, "text": "x"}, b"")
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("folder", ["", "..", "../x", "/etc", "a/b", ".hidden"])
def test_no_folder_but_ours_is_made_or_linked(here: Path, folder: str) -> None:
    for verb in (change.stage, change.link):
        with pytest.raises(Refusal):
            verb({"folder": folder}, b"")
        with pytest.raises(Refusal):
            verb({"folder": "a", "base": "etc"}, b"")
    assert list(here.iterdir()) == []


def test_no_unit_but_ours_is_started(here: Path) -> None:
    with pytest.raises(Refusal):
        change.start({"unit": "ssh.service"}, b"")


def test_a_link_to_what_is_not_there_is_refused(here: Path) -> None:
    with pytest.raises(Refusal, match=r"0\.1\.0-a is not there"):
        change.link({"folder": "0.1.0-a"}, b"")


def test_an_id_is_kept_unless_it_is_named_to_be_replaced(here: Path) -> None:
    assert change.identity({"proposed": "one"}, b"") == {"node_id": "one"}
    assert change.identity({"proposed": "two"}, b"") == {"node_id": "one"}
    assert change.identity({"proposed": "two", "replace": "other"}, b"") == {"node_id": "one"}
    assert change.identity({"proposed": "two", "replace": "one"}, b"") == {"node_id": "two"}

"""Failpoints: what the variable means, and that the page for people names every one, in order."""

import ast
import re
import sqlite3
import time
from pathlib import Path

import pytest

from sparkd.failpoints import FailpointError, passed, read

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "failpoints.md"
NAMES = ("process.py", "systemd.py", "docker.py")
RUNTIMES = [ROOT / "agents" / "sparkd_agent" / "runtime" / name for name in NAMES]


def in_the_code() -> list[str]:
    """Of the runtimes one is looked at: each starts a shim in the same steps, so they have the same names."""
    one, *more = (sorted(points(path), key=place) for path in RUNTIMES)
    assert all(other == one for other in more)
    others = [
        name
        for folder in (ROOT / "sparkd", ROOT / "agents")
        for path in sorted(folder.rglob("*.py"))
        if path not in RUNTIMES
        for name in points(path)
    ]
    return [*others, *one]


def points(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "passed":
            (argument,) = node.args
            assert isinstance(argument, ast.Constant), f"{path}:{node.lineno}: names stand in the code"
            found.append(str(argument.value))
    return found


def place(name: str) -> tuple[int, int]:
    process, _, step = name.partition(".")
    return ("coordinator", "agent", "shim").index(process), int(step.partition("-")[0])


def test_the_page_names_every_failpoint_in_order() -> None:
    names = in_the_code()
    assert len(names) == len(set(names)), "one name, one place"
    on_the_page = re.findall(r"^\| `([a-z.\d-]+)`", PAGE.read_text(), re.MULTILINE)
    assert on_the_page == sorted(names, key=place)
    for process in range(3):
        numbers = [number for of, number in map(place, on_the_page) if of == process]
        assert numbers == list(range(1, len(numbers) + 1))


def test_off_means_that_nothing_happens() -> None:
    passed("no.1-such")


def test_raise_is_what_a_disk_and_a_database_raise() -> None:
    point = read("a.1-b:raise")["a.1-b"]
    for kind in (OSError, sqlite3.OperationalError):
        with pytest.raises(kind, match=r"a\.1-b"):
            point()


def test_a_passage_counts() -> None:
    point = read("a:raise@3,b:kill")["a"]
    point()
    point()
    with pytest.raises(FailpointError):
        point()
    point()


def test_sleep_is_in_milliseconds() -> None:
    begun = time.monotonic()
    read("a:sleep=50")["a"]()
    assert 0.05 <= time.monotonic() - begun < 5


@pytest.mark.parametrize(
    "wrong", ["a", "a:", "a:die", "a:kill=1", "a:sleep", "a:sleep=x", "a:kill@x", ":kill"]
)
def test_what_is_not_understood_is_named(wrong: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(wrong))):
        read(f"b:kill,{wrong}")

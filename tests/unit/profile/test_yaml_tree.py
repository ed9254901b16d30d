import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.profile.yaml_tree import MAX_BYTES, read_yaml


def test_data_with_the_line_of_every_key() -> None:
    tree = read_yaml("a: 1\nb:\n  - x\n  - {c: no}\n")
    assert tree.problems == []
    assert tree.data == {"a": 1, "b": ["x", {"c": "no"}]}
    assert tree.lines == {("a",): 1, ("b",): 2, ("b", 0): 3, ("b", 1): 4, ("b", 1, "c"): 4}


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("-0x", "-0x"), ("0x1F", 31), ("010", 10), ("1.5", 1.5), ("1e3", 1000.0), ("true", True),
     ("yes", "yes"), ("no", "no"), ("on", "on"), ("12:30:45", "12:30:45"), ("2026-01-02", "2026-01-02"),
     ("~", None), ("", None), ("'1'", "1"), (".inf", ".inf"), (".", "."), ("-", [None])],
)  # fmt: skip
def test_scalars_follow_the_core_schema(text: str, value: object) -> None:
    assert read_yaml(text).data == value


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("a: 1\na: 2", 2, "given twice (first in line 1)"),
        ("a:\n  b: &x 1", 2, "anchors"),
        ("a: *x", 1, "anchors"),
        ("a: !!python/name:os.system x", 1, "tags"),
        ("a: 1\n---\nb: 1", 2, "second document"),
        ("? [a]\n: 1", 1, "key must be plain text"),
        ("a: [1\n]]", 2, "not YAML"),
        ("a: 1\n\tb: 2", 2, "not YAML"),
        ('a: "\\0"', 1, "character"),
        ("a: " + "9" * 5000, 1, "too large"),
        ("a: 1e999", 1, "too large"),
        ("[" * 40 + "]" * 40, 1, "nested too deeply"),
        ("- " * 40 + "x", 1, "nested too deeply"),
        ("[" + "1," * 60_000 + "]", 1, "too many values"),
        ("a" * (MAX_BYTES + 1), 1, "larger than 1024 KiB"),
    ],
)
def test_what_is_refused_is_named_with_its_line(text: str, line: int, says: str) -> None:
    problems = read_yaml(text).problems
    assert says in problems[0].text
    assert problems[0].line == line


def test_bytes_that_are_no_text_are_refused() -> None:
    assert "not UTF-8" in read_yaml(b"a: \xff").problems[0].text


@given(st.one_of(st.text(), st.binary(), st.text("[]{}:-,?!&*\n \"'ab")))
def test_nothing_raises(text: str | bytes) -> None:
    read_yaml(text)


@pytest.mark.parametrize(
    "piece", ["[", "{", "- ", "? ", "a: ", "&a [", "!x ", '"', "'", "a: |\n ", "# \n", "a,"]
)
def test_a_megabyte_of_anything_is_done_with_quickly(piece: str) -> None:
    started = time.process_time()
    read_yaml((piece * MAX_BYTES)[:MAX_BYTES])
    assert time.process_time() - started < 10

"""YAML as plain data with the line of every key: a small, safe subset, read without recursion.

Scalars follow YAML 1.2's core schema, so `no`, `on` and `1:30` are texts. Anchors, aliases, tags, several
documents and duplicate keys are refused: a profile says what it means in place.
"""

import math
import re
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

Path = tuple[str | int, ...]

MAX_BYTES: Final = 1 << 20
MAX_DEPTH: Final = 32
MAX_NODES: Final = 50_000

_INT: Final = re.compile(r"[-+]?[0-9]+")
_BASED: Final = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: Final[dict[str, Any]] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class YamlProblem:
    line: int
    path: Path
    text: str


@dataclass(slots=True)
class Tree:
    """`lines` has the 1-based line of every key and list item; `problems` are all that were found."""

    data: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[YamlProblem] = field(default_factory=list)


@dataclass(slots=True)
class _Open:
    """A map or list that is being read. `key` is the key that waits for its value."""

    value: dict[str, Any] | list[Any]
    path: Path
    key: str | None = None


def read_yaml(text: str | bytes) -> Tree:
    """Read one document. Never raises for bad input: see `problems`."""
    tree = Tree()
    if len(text) > MAX_BYTES:
        tree.problems.append(YamlProblem(1, (), f"larger than {MAX_BYTES >> 10} KiB"))
        return tree
    try:
        plain = text.decode() if isinstance(text, bytes) else text
        plain.encode()
        _build(plain, tree)
    except UnicodeError as error:
        tree.problems.append(YamlProblem(1, (), f"not UTF-8 ({error.reason})"))  # type: ignore[attr-defined]
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        tree.problems.append(YamlProblem(line, (), f"not YAML: {error.problem or error}"))
    except yaml.YAMLError as error:
        tree.problems.append(YamlProblem(1, (), f"not YAML: {' '.join(str(error).split())}"))
    return tree


def _build(text: str, tree: Tree) -> None:
    stack: list[_Open] = []
    nodes = 0
    documents = 0

    def problem(event: Any, message: str, path: Path = ()) -> None:
        tree.problems.append(YamlProblem(event.start_mark.line + 1, path, message))

    def place(event: Any, value: Any) -> Path:
        """Put a finished scalar or a fresh container where it belongs; returns its path."""
        if not stack:
            tree.data = value
            return ()
        top = stack[-1]
        if isinstance(top.value, list):
            path = (*top.path, len(top.value))
            top.value.append(value)
            tree.lines[path] = event.start_mark.line + 1
            return path
        key = top.key
        top.key = None
        assert key is not None  # noqa: S101 - a key always comes before its value
        top.value[key] = value
        return (*top.path, key)

    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                problem(event, "a second document; one file is one profile")
                return
            continue
        if not isinstance(event, (yaml.NodeEvent, yaml.CollectionEndEvent)):
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            stack.pop()
            continue
        nodes += 1
        if nodes > MAX_NODES or len(stack) >= MAX_DEPTH:
            problem(event, "nested too deeply" if len(stack) >= MAX_DEPTH else "too many values")
            return
        if event.anchor is not None:
            problem(event, "anchors and aliases are not read; write the value in place, or use a variant")
            return
        tag = getattr(event, "tag", None)
        if tag is not None:
            problem(event, f"tags are not read ({tag})")
            return
        top = stack[-1] if stack else None
        if top is not None and isinstance(top.value, dict) and top.key is None:
            if not isinstance(event, yaml.ScalarEvent):
                problem(event, "a key must be plain text", top.path)
                return
            _take_key(event, top, tree)
            continue
        if isinstance(event, yaml.ScalarEvent):
            path = place(event, None)
            _fill(event, path, stack[-1].value if stack else None, tree)
        else:
            value: dict[str, Any] | list[Any] = {} if isinstance(event, yaml.MappingStartEvent) else []
            stack.append(_Open(value, place(event, value)))


def _take_key(event: Any, top: _Open, tree: Tree) -> None:
    key = event.value
    line = event.start_mark.line + 1
    path = (*top.path, key)
    if key in top.value:
        first = tree.lines.get(path, 1)
        tree.problems.append(YamlProblem(line, path, f"given twice (first in line {first})"))
    if "\0" in key or not _storable(key):
        tree.problems.append(YamlProblem(line, top.path, "a key holds a character that cannot be stored"))
    tree.lines[path] = line
    top.key = key


def _fill(event: Any, path: Path, parent: Any, tree: Tree) -> None:
    try:
        value = _scalar(event)
    except ValueError as error:
        tree.problems.append(YamlProblem(event.start_mark.line + 1, path, str(error)))
        return
    if parent is None:
        tree.data = value
    else:
        parent[path[-1]] = value


def _scalar(event: Any) -> Any:
    text: str = event.value
    if "\0" in text or not _storable(text):
        raise ValueError("holds a character that cannot be stored or passed to a process")
    if not event.implicit[0]:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text) or _BASED.fullmatch(text):
        number = int(text[:32], 0 if _BASED.fullmatch(text) else 10)
        if len(text) > 32 or not -(2**63) <= number < 2**63:
            raise ValueError("the number is too large")
        return number
    if _FLOAT.fullmatch(text):
        real = float(text)
        if not math.isfinite(real):
            raise ValueError("the number is too large")
        return real
    return text


def _storable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

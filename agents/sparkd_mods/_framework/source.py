"""Fingerprints: the first 12 hex digits of SHA-256 over the exact source text of a function.

Without decorators, as `ast.get_source_segment` gives it. A hash of the syntax tree would depend on the
Python version, and a version number says little about a development build.
"""

import ast
import hashlib
from collections.abc import Iterable
from pathlib import Path

from sparkd_mods._framework.declare import ABSENT

_DIGITS = 12


def fingerprints(path: str | Path, names: Iterable[str]) -> dict[str, str]:
    """The fingerprint of each `function` or `Class.method` in a source file; ABSENT for what is not there.

    Raises OSError, SyntaxError or UnicodeDecodeError for a file that cannot be read as Python.
    """
    text = Path(path).read_text(encoding="utf-8")
    tree = ast.parse(text)
    return {name: _fingerprint(text, tree, name) for name in names}


def _fingerprint(text: str, tree: ast.Module, name: str) -> str:
    node: ast.AST = tree
    for part in name.split("."):
        found = _child(node, part)
        if found is None:
            return ABSENT
        node = found
    segment = ast.get_source_segment(text, node)
    return hashlib.sha256((segment or "").encode()).hexdigest()[:_DIGITS]


def _child(node: ast.AST, name: str) -> ast.AST | None:
    """The last definition of that name: it is the one that counts."""
    found = None
    for child in getattr(node, "body", ()):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and child.name == name:
            found = child
    return found

"""The import graph of the design, read from the sources: who may know of whom."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "sparkd": ROOT / "sparkd",
    "sparkd_agent": ROOT / "agents" / "sparkd_agent",
    "sparkd_mods": ROOT / "agents" / "sparkd_mods",
}

SHARED = ("sparkd.records", "sparkd.engine", "sparkd.detect", "sparkd.errors", "sparkd.clock")
"""What both sides of the wire compute with."""
IMPURE = frozenset(
    {"asyncio", "concurrent", "ctypes", "fcntl", "http", "io", "logging", "multiprocessing", "os", "pathlib"}
    | {"random", "secrets", "select", "selectors", "shutil", "signal", "socket", "sqlite3", "ssl"}
    | {"subprocess", "tempfile", "threading", "time", "urllib", "uuid"}
)
"""What reads a clock, a file, a socket or chance."""


@dataclass(frozen=True)
class Rule:
    who: str
    why: str
    own: tuple[str, ...]
    """Of sparkd and sparkd_agent; a package stands for everything in it."""
    foreign: frozenset[str] = frozenset()
    """Distributions besides the standard library."""
    pure: bool = False


PURE = "a pure machine computes with records only: no I/O, no clock, no chance"
LIGHT = "both daemons and the command line load it"
RULES = [
    *(Rule(who, LIGHT, SHARED, frozenset({"msgspec"})) for who in SHARED),
    # What one is to think of a fall is in the catalogue; it looks at records and at nothing else.
    Rule("sparkd.diagnosis", PURE, (*SHARED, "sparkd.diagnosis"), pure=True),
    # A gang looks at nodes and asks for places; nothing else of the fleet is its business.
    Rule(
        "sparkd.gang",
        PURE,
        (*SHARED, "sparkd.diagnosis", "sparkd.gang", "sparkd.fleet.nodes", "sparkd.fleet.placement"),
        pure=True,
    ),
    Rule("sparkd.fleet", PURE, (*SHARED, "sparkd.gang", "sparkd.fleet"), pure=True),
    Rule("sparkd.fabric", PURE, (*SHARED, "sparkd.fabric"), pure=True),
    Rule("sparkd.detect", PURE, SHARED, pure=True),
    Rule("sparkd_agent.core", PURE, (*SHARED, "sparkd_agent.core"), pure=True),
    Rule("sparkd_agent.life", PURE, SHARED, pure=True),
    Rule(
        "sparkd.enrol.onnode",
        "it is sent to nodes that have nothing of ours: the standard library only",
        ("sparkd.enrol.onnode",),
    ),
    Rule(
        "sparkd_agent.shim",
        "it stays beside every model, and is alone in containers: the standard library only",
        ("sparkd_agent.shim",),
    ),
    Rule(
        "sparkd_agent",
        "the agent shares its node's memory with the model",
        # `sparkd` alone is its version; failpoints are for both daemons.
        (*SHARED, "sparkd.__version__", "sparkd.failpoints", "sparkd.notify", "sparkd_agent"),
        frozenset({"h11", "jeepney", "msgspec", "psutil"}),
    ),
    Rule(
        "sparkd_mods._framework",
        "vLLM's python has nothing of ours, and `sparkd mods` runs it in one without vLLM",
        ("sparkd_mods",),
    ),
    Rule(
        "sparkd_mods",
        "vLLM's python has nothing of ours",
        ("sparkd_mods",),
        frozenset({"torch", "transformers", "triton", "vllm"}),
    ),
    Rule(
        "sparkd",
        "the agent is a program of its own: local mode starts it by name",
        ("sparkd",),
        frozenset({"fastapi", "h11", "httpx2", "msgspec", "prometheus_client", "psutil", "pydantic"})
        # Those of `sparkd[enrol]`: imported where they are used only.
        | frozenset({"cryptography", "paramiko"})
        | frozenset({"rich", "starlette", "typer", "uvicorn", "yaml"}),
    ),
]


@dataclass(frozen=True)
class Import:
    module: str
    names: tuple[str, ...]
    line: int


def imports_of(source: str) -> Iterator[Import]:
    """Everything imported, also inside functions and for type checkers; a relative import is `.`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, (), node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." if node.level else node.module or ""
            yield Import(module, tuple(alias.name for alias in node.names), node.lineno)


def offence(rule: Rule, found: Import) -> bool:
    top = found.module.partition(".")[0]
    if top in FOLDERS:
        # `from sparkd import errors` names a module; a bare `import sparkd` is for its version.
        names = found.names or ("__version__",)
        modules = [f"{top}.{name}" for name in names] if found.module == top else [found.module]
        return not all(within(module, rule.own) for module in modules)
    if top in sys.stdlib_module_names:
        return rule.pure and top in IMPURE
    return top not in rule.foreign


def within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def module_of(path: Path) -> str:
    package, folder = next((p, f) for p, f in FOLDERS.items() if path.is_relative_to(f))
    parts = path.relative_to(folder).with_suffix("").parts
    return ".".join([package, *(part for part in parts if part != "__init__")])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.who}{'-pure' if rule.pure else ''}")
def test_the_import_graph(rule: Rule) -> None:
    sources = sorted(path for folder in FOLDERS.values() for path in folder.rglob("*.py"))
    subject = [path for path in sources if within(module_of(path), (rule.who,))]
    assert subject, f"{rule.who} has no files any more"
    offenders = [
        f"{path.relative_to(ROOT)}:{found.line}: imports {found.module} {' '.join(found.names)}"
        for path in subject
        for found in imports_of(path.read_text())
        if offence(rule, found)
    ]
    assert not offenders, f"{rule.why}\n" + "\n".join(offenders)


@pytest.mark.parametrize(
    ("who", "source"),
    [
        ("sparkd_agent", "from sparkd.client import Client"),
        ("sparkd_agent", "from sparkd import paths"),
        ("sparkd_agent", "def f():\n    import httpx2"),
        ("sparkd_agent", "import yaml.nodes"),
        ("sparkd_agent.shim", "import msgspec"),
        ("sparkd.enrol.onnode", "from sparkd.errors import SparkdError"),
        ("sparkd_agent.core", "from time import monotonic"),
        ("sparkd", "from sparkd_agent.procfs import ProcFs"),
        ("sparkd.records", "from sparkd.gang.state import Gang"),
        ("sparkd.engine", "import psutil"),
        ("sparkd.gang", "import os.path"),
        ("sparkd.fleet", "from . import nodes"),
    ],
)
def test_an_offence_is_found(who: str, source: str) -> None:
    rules = [rule for rule in RULES if rule.who == who]
    assert any(offence(rule, found) for rule in rules for found in imports_of(source))

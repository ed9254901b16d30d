"""Every command that the documents name exists, with its options."""

import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from sparkd.cli import VERBS

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_CODE = re.compile(r"`([^`\n]+)`|^    (.+)$", re.MULTILINE)


def commands(text: str) -> list[list[str]]:
    """Of all code in a page the words after `sparkd`, up to what belongs to the shell."""
    found = []
    for match in _CODE.finditer(text):
        code = (match[1] or match[2]).replace('"$(command -v sparkd)"', "sparkd")
        for part in re.split(r"[;|&]", code.partition(" #")[0]):
            try:
                words = shlex.split(part)
            except ValueError:
                continue
            while words and (words[0] == "sudo" or re.match(r"[A-Z_]+=", words[0])):
                words.pop(0)
            # A drawing begins with our name as well.
            if words[:1] == ["sparkd"] and re.match(r"[a-z-]+$", "".join(words[1:2])):
                found.append(words[1:])
    return found


def parser_of(verb: str) -> Any:
    module = import_module(f"sparkd.cli.{verb}")
    app = getattr(module, "app", None)
    if not isinstance(app, typer.Typer):
        app = typer.Typer()
        app.command(verb)(getattr(module, verb))
    return typer.main.get_command(app)


def problem(words: list[str]) -> str:
    """What is wrong with a command; nothing when it could be typed."""
    verb = words[0]
    if verb not in VERBS:
        return "" if verb.startswith("-") else f"no verb {verb}"
    parser, rest = parser_of(verb), words[1:]
    if hasattr(parser, "commands"):
        if not rest or rest[0].startswith("-"):
            return ""
        # `nodes add|upgrade`, as pages write it.
        names = rest[0].split("|")
        if unknown := [name for name in names if name not in parser.commands]:
            return f"{verb} has no {unknown[0]}"
        parser, rest = parser.commands[names[0]], rest[1:]
    known = {option for parameter in parser.params for option in (*parameter.opts, *parameter.secondary_opts)}
    given = [word.partition("=")[0] for word in rest[: rest.index("--") if "--" in rest else None]]
    strange = [word for word in given if word.startswith("-") and word not in {*known, "--help", "--debug"}]
    return f"{verb} has no option {strange[0]}" if strange else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_could_be_typed(page: Path) -> None:
    found = commands(page.read_text())
    wrong = [f"sparkd {' '.join(words)}: {why}" for words in found if (why := problem(words))]
    assert not wrong, "\n".join(wrong)


def test_the_owners_path_is_looked_at() -> None:
    found = commands((ROOT / "README.md").read_text())
    assert ["init"] in found
    assert any(words[:2] == ["nodes", "add"] for words in found)
    assert any(words[0] == "up" for words in found)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("`sparkd upp x`", "no verb upp"),
        ("`sparkd nodes enrol x`", "nodes has no enrol"),
        ("`sudo sparkd init --no-such`", "init has no option --no-such"),
        ("`A=b sparkd up x --nope=3`", "up has no option --nope"),
    ],
)
def test_what_does_not_exist_is_found(code: str, expected: str) -> None:
    (words,) = commands(code)
    assert problem(words) == expected

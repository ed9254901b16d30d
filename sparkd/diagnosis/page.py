"""docs/diagnosis.md, drawn from the catalogue: `python -m sparkd.diagnosis.page > docs/diagnosis.md`."""

import sys
from typing import Final

from sparkd.diagnosis.catalogue import Area, areas
from sparkd.diagnosis.rule import Rule

_HEAD: Final = """# What can go wrong, and what to do

Made from the catalogue in `sparkd/diagnosis/rules/` by `python -m sparkd.diagnosis.page`; a test holds it to
that. [adding-a-rule.md](adding-a-rule.md) says how a rule is added. *block* keeps a gang from starting or
ended it, *warn* and *note* do not. A fall is tried again as often as the restart budget allows, one for lack
of memory once, and not at all where it says so.
"""
_RETRY: Final = {
    "normal": "",
    "memory": "Tried once more. ",
    "never": "Not tried again: a retry cannot cure it. ",
}


def page() -> str:
    """The page as Markdown."""
    return _HEAD + "".join(_area(area) for area in areas())


def _area(area: Area) -> str:
    return f"\n## {area.name}\n\n{area.about}\n" + "".join(_rule(rule) for rule in area.rules)


def _rule(rule: Rule) -> str:
    prevents = "".join(f" `--set {one}`." for one in rule.prevents)
    seen = f" ({rule.reference})" if rule.reference else ""
    return (
        f"\n**{rule.id}** · {rule.severity.value} · {rule.title}\n"
        f"- why: {rule.cause}{seen}\n- do: {rule.remedy}.{prevents} {_RETRY[rule.retry]}".rstrip()
        + "\n"
    )


if __name__ == "__main__":
    sys.stdout.write(page())

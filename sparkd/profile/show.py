"""A plan for people and for programs: argv one flag a line, environment one variable a line, with origins."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from sparkd.records.defaults import GIB
from sparkd.records.plan import MemoryLine, Plan, PlannedArg, RankPlan

_PLAIN_WORD: Final = re.compile(r"[\w%+,./:=@^-]+")
_ORIGIN_COLUMN: Final = 56


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan as published: rank specs are left out, their argv and environment are in."""
    return {
        "deployment": plan.deployment,
        "profile": plan.profile,
        "generation": plan.generation,
        "model_path": plan.model_path,
        "served_names": plan.served_names,
        "api": str(plan.api),
        "rendezvous": str(plan.rendezvous),
        "ranks": [_rank_json(rank) for rank in plan.ranks],
        "memory": msgspec.to_builtins(plan.memory),
        "notes": plan.notes,
        "verified": plan.verified,
        "verdicts": msgspec.to_builtins(plan.verdicts),
    }


def _rank_json(rank: RankPlan) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "name": rank.spec.name,
        "node": rank.node_name,
        "node_address": rank.node_address,
        "runtime": rank.spec.runtime,
        "argv": rank.argv,
        "command": rank.command,
        "args": msgspec.to_builtins(rank.args),
        "env": msgspec.to_builtins(rank.env),
    }


def plan_lines(plan: Plan) -> Iterator[str]:
    """Plain text; a word that a shell would not leave alone is shown as a JSON text, so none is ambiguous."""
    yield f"plan of {plan.deployment} (profile {plan.profile}), generation {plan.generation}"
    yield f"  API         http://{plan.api}"
    yield f"  rendezvous  {plan.rendezvous}"
    yield f"  model       {word(plan.model_path)}, served as {', '.join(plan.served_names)}"
    for rank in plan.ranks:
        yield ""
        where = f"{rank.node_name} ({rank.node_address})"
        yield f"rank {rank.rank} on {where}, by {rank.spec.runtime}: {rank.spec.name}"
        yield "  argv"
        yield f"    {' '.join(word(text) for text in rank.command)}"
        for arg in rank.args:
            yield _with_origin("    " + _arg(arg), arg.origin, arg.note)
        yield "  environment"
        for variable in rank.env:
            yield _with_origin(f"    {variable.name}={word(variable.value)}", variable.origin, variable.note)
    yield ""
    yield from memory_text(plan.memory)
    if plan.notes or plan.verified:
        yield ""
    for note in plan.notes:
        yield f"note: {note}"
    for text in plan.verified:
        yield f"verified: {text}"


def memory_text(lines: Sequence[MemoryLine]) -> Iterator[str]:
    """The sum that must fit each rank's node, line by line."""
    yield "memory of each rank"
    for line in lines:
        yield f"  {line.bytes / GIB:8.2f} GiB  {line.label}"
    yield f"  {sum(line.bytes for line in lines) / GIB:8.2f} GiB  in all"


def _arg(arg: PlannedArg) -> str:
    return " ".join(word(text) for text in arg.words)


def _with_origin(text: str, origin: str, note: str) -> str:
    said = f"{origin} ({_line(note)})" if note else origin
    return f"{text:<{_ORIGIN_COLUMN}}  # {said}"


def word(text: str) -> str:
    """One argv word or value as one line: as it is when plain, else as a JSON text."""
    return text if _PLAIN_WORD.fullmatch(text) else json.dumps(text, ensure_ascii=not text.isprintable())


def _line(text: str) -> str:
    """A note may quote words of a command line, line breaks included."""
    return text if text.isprintable() else json.dumps(text)

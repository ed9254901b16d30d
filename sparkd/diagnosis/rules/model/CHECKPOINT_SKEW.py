import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from sparkd.diagnosis.copying import copy, is_damaged
from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule
from sparkd.records.checkpoint import Checkpoint
from sparkd.records.preflight import Member

_Has = tuple[Member, Checkpoint]
_SHOWN: Final = 3
_FOR_ENGINES: Final = re.compile(
    r"(?i)(?!(license|notice|readme)).*\.(safetensors|json|jinja|py|model|txt|tiktoken|bin|pt|pth|gguf)"
)
"""What engines read. Others may differ: a readme, a log, an editor's copy."""


def _match(evidence: Evidence) -> Iterator[Found]:
    """The same names, sizes and headers everywhere, wherever the folder lies and whatever it is called."""
    members = evidence.members
    for name in dict.fromkeys(name for member in members for name in member.checkpoints):
        sound = [
            (member, checkpoint)
            for member in members
            if (checkpoint := member.checkpoints.get(name)) is not None and not is_damaged(checkpoint)
        ]
        counted = Counter(_content(checkpoint) for _, checkpoint in sound)
        if len(counted) <= 1:
            continue
        most = max(counted.values())
        right, model = next(one for one in sound if counted[_content(one[1])] == most)
        for member, checkpoint in sound:
            if _content(checkpoint) == _content(model):
                continue
            which = f"model.also.{name}" if name else "the model"
            yield Found(
                _difference(checkpoint, member.name, model, right.name),
                node=member.name,
                title=f"{which} has other files here than on {right.name}",
                remedy=_remedy(sound, (right, model), (member, checkpoint)),
            )


def _remedy(sound: Sequence[_Has], right: _Has, odd: _Has) -> str:
    """A copy removes nothing: what the odd node alone has goes to all others, or it goes away."""
    (source, model), (node, checkpoint) = right, odd
    wanted, there = _read(model), _read(checkpoint)
    surplus = sorted(there.keys() - wanted.keys())
    lacking = sum(size for file, size in wanted.items() if there.get(file) != size)
    away = f"remove {', '.join(posixpath.join(checkpoint.path, name) for name in surplus)} on {node.name}"
    if surplus and not lacking:
        size = sum(there[name] for name in surplus)
        others = [other for other, has in sound if _content(has) == _content(model)]
        return "; ".join([*(copy(node, checkpoint, other, size) for other in others), f"or {away}"])
    weights = sum(size for file, size in wanted.items() if file.endswith(".safetensors"))
    line = copy(source, model, node, lacking or weights)
    return f"{line}; then {away}" if surplus else line


def _content(checkpoint: Checkpoint) -> tuple[tuple[tuple[str, int], ...], str]:
    return tuple(sorted(_read(checkpoint).items())), checkpoint.headers


def _read(checkpoint: Checkpoint) -> Mapping[str, int]:
    return {name: size for name, size in checkpoint.files.items() if _FOR_ENGINES.fullmatch(name)}


def _difference(one: Checkpoint, here: str, other: Checkpoint, there: str) -> str:
    mine, theirs = _read(one), _read(other)
    sizes = sorted(n for n in mine.keys() & theirs.keys() if mine[n] != theirs[n])
    told = [f"{name}: {mine[name]:,} bytes on {here}, {theirs[name]:,} on {there}" for name in sizes]
    told += [f"{name} is on {there} only" for name in sorted(theirs.keys() - mine.keys())]
    told += [f"{name} is on {here} only" for name in sorted(mine.keys() - theirs.keys())]
    if not told:
        told = [f"names and sizes agree, the headers of the weights do not ({one.headers}, {other.headers})"]
    if one.revision != other.revision:
        told.insert(0, f"revision {one.revision or 'unknown'} here, {other.revision or 'unknown'} there")
    return "; ".join(told[:_SHOWN]) + (f"; and {len(told) - _SHOWN} more" if len(told) > _SHOWN else "")


RULE = Rule(
    id="CHECKPOINT_SKEW",
    title="the model has other files on one node than on the others",
    cause="ranks with different weights answer nonsense, or wait for each other for ever",
    remedy="copy the model from one node to all others",
    match=_match,
    kind="state",
    retry="never",
    reference="eugr/spark-vllm-docker#262",
)

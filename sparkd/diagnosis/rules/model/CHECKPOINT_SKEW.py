import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from sparkd.diagnosis.copying import copy, is_damaged
from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule
from sparkd.records.checkpoint import Checkpoint

_SHOWN: Final = 3
_FOR_PEOPLE: Final = re.compile(r"(?i)(license|notice|readme).*|.*\.(md|png|jpe?g|gif|svg|pdf)")
"""Files that no engine reads: they may differ."""


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
            size = sum(n for file, n in model.files.items() if checkpoint.files.get(file) != n)
            which = f"model.also.{name}" if name else "the model"
            yield Found(
                _difference(checkpoint, member.name, model, right.name),
                node=member.name,
                title=f"{which} has other files here than on {right.name}",
                remedy=copy(right, model, member, size or model.bytes),
            )


def _content(checkpoint: Checkpoint) -> tuple[tuple[tuple[str, int], ...], str]:
    return tuple(sorted(_read(checkpoint).items())), checkpoint.headers


def _read(checkpoint: Checkpoint) -> Mapping[str, int]:
    return {name: size for name, size in checkpoint.files.items() if not _FOR_PEOPLE.fullmatch(name)}


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

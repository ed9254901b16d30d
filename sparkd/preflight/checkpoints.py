"""What speaks against a launch in the model's files: one node lacks them, or has others than the rest."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from sparkd.preflight.copying import copy_remedy
from sparkd.preflight.member import Member
from sparkd.profile.schema import ModelSource, Profile
from sparkd.records.checkpoint import Checkpoint, CheckpointDefect
from sparkd.records.verdict import Severity, Verdict

_SHOWN: Final = 3
_FOR_PEOPLE: Final = re.compile(r"(?i)(license|notice|readme).*|.*\.(md|png|jpe?g|gif|svg|pdf)")
"""Files that no engine reads: they may differ."""


def checkpoint_verdicts(profile: Profile, members: Sequence[Member]) -> list[Verdict]:
    """In the order in which a person would cure them."""
    return [*_missing(profile, members), *_defects(members), *_skew(members)]


def _missing(profile: Profile, members: Sequence[Member]) -> Iterator[Verdict]:
    """Case 47: without the files on every node each rank would fetch them, or fail after minutes."""
    for member in members:
        if member.models is not None:
            continue
        yield Verdict(
            "MODEL_MISSING",
            Severity.BLOCK,
            "the model is not on this node",
            evidence=member.models_unknown,
            remedy=_bring(members, "", member) or _fetch(profile.model, member),
            node=member.name,
        )


def _defects(members: Sequence[Member]) -> Iterator[Verdict]:
    """Case 48: a shard that was cut short is noticed by vLLM after minutes, on one rank."""
    for member in members:
        for name, checkpoint in _checkpoints(member).items():
            unusable = [d for d in checkpoint.defects if d.kind in ("config", "weights")]
            for defect in unusable:
                yield Verdict(
                    "MODEL_DEFECT",
                    Severity.BLOCK,
                    "a file of the model cannot be used",
                    evidence=defect.detail,
                    remedy=_bring(members, name, member)
                    or "correct that file on the node, or copy it there again",
                    node=member.name,
                )
            damaged = [d for d in checkpoint.defects if d not in unusable and d.kind != "incomplete"]
            unfinished = [d for d in checkpoint.defects if d.kind == "incomplete"]
            if damaged:
                yield Verdict(
                    "HALF_DOWNLOAD",
                    Severity.BLOCK,
                    f"{_count(damaged, 'file')} of the model not as they should be",
                    evidence=_several([*damaged, *unfinished]),
                    cause="a download or a copy that was broken off",
                    remedy=_bring(members, name, member)
                    or "copy these files again from where the model came from",
                    node=member.name,
                )
            elif unfinished:
                yield Verdict(
                    "DOWNLOAD_UNFINISHED",
                    Severity.WARN,
                    "a download beside the model was not finished",
                    evidence=_several(unfinished),
                    cause="it is for another revision, or for a file that this model does not name",
                    remedy="let it finish, or remove these files",
                    node=member.name,
                )


def _skew(members: Sequence[Member]) -> Iterator[Verdict]:
    """The same names, sizes and headers everywhere; what most nodes have is right, else what rank 0 has."""
    names = dict.fromkeys(name for member in members for name in _checkpoints(member))
    for name in names:
        sound = [
            (member, checkpoint)
            for member in members
            if (checkpoint := _checkpoints(member).get(name)) is not None and not _is_damaged(checkpoint)
        ]
        if len({_content(checkpoint) for _, checkpoint in sound}) <= 1:
            continue
        counted = Counter(_content(checkpoint) for _, checkpoint in sound)
        most = max(counted.values())
        right, model = next(one for one in sound if counted[_content(one[1])] == most)
        for member, checkpoint in sound:
            if _content(checkpoint) == _content(model):
                continue
            which = f"model.also.{name}" if name else "the model"
            size = sum(n for file, n in model.files.items() if checkpoint.files.get(file) != n)
            yield Verdict(
                "CHECKPOINT_SKEW",
                Severity.BLOCK,
                f"{which} has other files here than on {right.name}",
                evidence=_difference(checkpoint, member.name, model, right.name),
                cause="ranks with different weights answer nonsense, or wait for each other for ever",
                remedy=copy_remedy(right, model, member, size or model.bytes),
                node=member.name,
            )


def _checkpoints(member: Member) -> dict[str, Checkpoint]:
    return member.models.all if member.models is not None else {}


def _is_damaged(checkpoint: Checkpoint) -> bool:
    return any(defect.kind != "incomplete" for defect in checkpoint.defects)


def _content(checkpoint: Checkpoint) -> tuple[tuple[tuple[str, int], ...], str]:
    """A revision is part of the path; two folders with the same bytes are the same model."""
    return tuple(sorted(_read(checkpoint).items())), checkpoint.headers


def _read(checkpoint: Checkpoint) -> Mapping[str, int]:
    return {name: size for name, size in checkpoint.files.items() if not _FOR_PEOPLE.fullmatch(name)}


def _difference(one: Checkpoint, here: str, other: Checkpoint, there: str) -> str:
    mine, theirs = _read(one), _read(other)
    lacks = sorted(theirs.keys() - mine.keys())
    more = sorted(mine.keys() - theirs.keys())
    sizes = sorted(n for n in mine.keys() & theirs.keys() if mine[n] != theirs[n])
    told = [f"{name}: {mine[name]:,} bytes on {here}, {theirs[name]:,} on {there}" for name in sizes]
    told += [f"{name} is on {there} only" for name in lacks]
    told += [f"{name} is on {here} only" for name in more]
    if not told:
        told = [f"same names and sizes, but other tensors in the headers ({one.headers}, {other.headers})"]
    if one.revision != other.revision:
        told.insert(0, f"revision {one.revision or 'unknown'} here, {other.revision or 'unknown'} there")
    return "; ".join(told[:_SHOWN]) + (f"; and {len(told) - _SHOWN} more" if len(told) > _SHOWN else "")


def _bring(members: Sequence[Member], name: str, target: Member) -> str:
    """The copy from the first node that has this model whole; empty if none has."""
    have = _checkpoints(target).get(name)
    for source in members:
        good = _checkpoints(source).get(name)
        if source is target or source.facts.address == target.facts.address:
            continue  # nodes of a local set share a disk
        if good is not None and not _is_damaged(good):
            broken = {d.file for d in have.defects} if have is not None else set()
            size = sum(
                n
                for file, n in good.files.items()
                if have is None or have.files.get(file) != n or f"{have.path}/{file}" in broken
            )
            return copy_remedy(source, good, target, size)
    return ""


def _fetch(model: ModelSource, member: Member) -> str:
    if model.id is None or not member.facts.model_roots:
        return "put the checkpoint into a model root of the node, or correct the model's path"
    return (
        f"no node has it; on {member.name}: HF_HUB_CACHE={member.facts.model_roots[0]} "
        f"hf download {model.id} --revision {model.revision}"
    )


def _several(defects: Sequence[CheckpointDefect]) -> str:
    shown = "; ".join(defect.detail for defect in defects[:_SHOWN])
    return shown + (f"; and {len(defects) - _SHOWN} more" if len(defects) > _SHOWN else "")


def _count(items: Sequence[object], what: str) -> str:
    return f"one {what}" if len(items) == 1 else f"{len(items)} {what}s"

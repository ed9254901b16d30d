from collections.abc import Iterator, Sequence
from typing import Final

from sparkd.diagnosis.copying import bring
from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule, log
from sparkd.records.checkpoint import CheckpointDefect

_KINDS: Final = frozenset({"missing", "size", "header", "pointer", "link"})
_SHOWN: Final = 3
_LINE: Final = log(
    "deserializing header",
    "MetadataIncompleteBuffer",
    "HeaderTooLarge",
    "HeaderTooSmall",
    "InvalidHeader",
    "not fully covered",
    pattern=r"Error while deserializing header|MetadataIncompleteBuffer|HeaderToo(Large|Small)|"
    r"InvalidHeader(Length|Start|Deserialization)?\b|not fully covered",
)


def _match(evidence: Evidence) -> Iterator[Found]:
    yield from _LINE(evidence)
    for member in evidence.members:
        for name, checkpoint in member.checkpoints.items():
            damaged = [one for one in checkpoint.defects if one.kind in _KINDS]
            unfinished = [one for one in checkpoint.defects if one.kind == "incomplete"]
            if damaged:
                which = f"model.also.{name}" if name else "the model"
                yield Found(
                    _several([*damaged, *unfinished]),
                    node=member.name,
                    title=f"{_count(len(damaged))} of {which} cannot be used",
                    remedy=bring(evidence.members, name, member),
                )


def _several(defects: Sequence[CheckpointDefect]) -> str:
    shown = "; ".join(defect.detail for defect in defects[:_SHOWN])
    return shown + (f"; and {len(defects) - _SHOWN} more" if len(defects) > _SHOWN else "")


def _count(number: int) -> str:
    return "one file" if number == 1 else f"{number} files"


RULE = Rule(
    id="HALF_DOWNLOAD",
    title="files of the model are not as they should be",
    cause="a download or a copy that was broken off, or a pointer of Git LFS instead of the file",
    remedy="copy these files again from where the model came from",
    match=_match,
    needles=_LINE.needles,
    retry="never",
    reference="MiniMax-AI/MiniMax-M2.5#37; lyogavin/airllm#137",
)

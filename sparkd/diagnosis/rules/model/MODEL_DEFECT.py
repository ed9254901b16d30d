from collections.abc import Iterator

from sparkd.diagnosis.copying import bring
from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule


def _match(evidence: Evidence) -> Iterator[Found]:
    for member in evidence.members:
        for name, checkpoint in member.checkpoints.items():
            found = [one for one in checkpoint.defects if one.kind in {"config", "weights"}]
            if found:
                yield Found(
                    "; ".join(one.detail for one in found),
                    node=member.name,
                    remedy=bring(evidence.members, name, member),
                )


RULE = Rule(
    id="MODEL_DEFECT",
    title="a file of the model cannot be used",
    cause="it was edited or copied wrongly",
    remedy="correct that file on the node, or copy it there again",
    match=_match,
    kind="state",
    retry="never",
)

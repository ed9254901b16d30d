from collections.abc import Iterator

from sparkd.diagnosis.copying import is_damaged
from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule
from sparkd.records.verdict import Severity


def _match(evidence: Evidence) -> Iterator[Found]:
    for member in evidence.members:
        for checkpoint in member.checkpoints.values():
            found = [one.detail for one in checkpoint.defects if one.kind == "incomplete"]
            if found and not is_damaged(checkpoint):
                yield Found("; ".join(found[:3]), node=member.name)


RULE = Rule(
    id="DOWNLOAD_UNFINISHED",
    title="a download beside the model was not finished",
    cause="it is for another revision, or for a file that this model does not name",
    remedy="let it finish, or remove these files",
    match=_match,
    kind="state",
    severity=Severity.WARN,
)

from collections.abc import Iterator

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule
from sparkd.records.verdict import Severity


def _match(evidence: Evidence) -> Iterator[Found]:
    for member in evidence.members:
        if member.machine is None and member.machine_unknown:
            yield Found(member.machine_unknown, node=member.name)


RULE = Rule(
    id="FACTS_UNKNOWN",
    title="this node did not say in what state it is",
    cause="its agent is an older one, or was too busy; versions, limits and what else runs there were not seen",
    remedy="sparkd nodes upgrade; if its agent is of this version already, its journal says more",
    match=_match,
    kind="state",
    severity=Severity.WARN,
)

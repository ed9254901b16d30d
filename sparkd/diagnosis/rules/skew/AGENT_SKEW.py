from collections.abc import Iterator

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.odd import fact, odd_ones
from sparkd.diagnosis.rule import Found, Rule
from sparkd.records.verdict import Severity


def _match(evidence: Evidence) -> Iterator[Found]:
    yield from odd_ones(evidence.members, {"agent": fact(lambda machine: machine.agent)})


RULE = Rule(
    id="AGENT_SKEW",
    title="another agent than on the other nodes",
    cause="an upgrade has not reached every node yet; agents of neighbouring versions work together",
    remedy="sparkd nodes upgrade",
    match=_match,
    kind="state",
    severity=Severity.NOTE,
)

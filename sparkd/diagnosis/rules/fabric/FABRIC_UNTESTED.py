from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="FABRIC_UNTESTED",
    title="the way between two nodes was not tested",
    cause="an agent that is out of contact, or a machine that is too busy to answer",
    remedy="`sparkd nodes list` shows whether its agent is in contact",
    match=reported("FABRIC_UNTESTED"),
    kind="state",
    severity=Severity.WARN,
)

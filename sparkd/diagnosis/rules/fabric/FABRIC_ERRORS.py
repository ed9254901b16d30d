from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="FABRIC_ERRORS",
    title="the fabric interface counts errors",
    cause="frames that one end sends and the other one does not take, or a bad cable",
    remedy="compare the MTU of both ends and of the switch; then swap the cable",
    match=reported("FABRIC_ERRORS"),
    kind="state",
    severity=Severity.WARN,
)

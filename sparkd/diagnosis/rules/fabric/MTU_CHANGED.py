from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="MTU_CHANGED",
    title="the MTU of the fabric interface changed under the gang",
    cause="a network service set it anew; both ends and the switch must agree",
    remedy="set it back, in netplan so that it stays",
    match=reported("MTU_CHANGED"),
    kind="state",
    severity=Severity.WARN,
)

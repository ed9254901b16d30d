from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="SPIN_DEADLOCK",
    title="the GPU is busy with waiting: high load, little power, no steps",
    cause="a collective waits for a peer that is gone or stuck",
    remedy="look at the other ranks; the gang is ended when its pulse is not answered",
    match=reported("SPIN_DEADLOCK"),
    kind="state",
    severity=Severity.WARN,
)

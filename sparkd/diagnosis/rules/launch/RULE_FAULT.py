from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="RULE_FAULT",
    title="a rule of the diagnosis has a fault",
    cause="it met something that whoever wrote it did not think of; the other rules were asked",
    remedy="report the line above to sparkd's makers",
    match=reported("RULE_FAULT"),
    kind="state",
    severity=Severity.NOTE,
)

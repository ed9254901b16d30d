from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="THERMAL_THROTTLE",
    title="the GPU is too hot",
    cause="warm air does not get away",
    remedy="see to the node's air: its sides must be free, and nothing warm may stand below it",
    match=reported("THERMAL_THROTTLE"),
    kind="state",
    severity=Severity.WARN,
)

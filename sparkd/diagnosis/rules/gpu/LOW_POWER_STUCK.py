from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="LOW_POWER_STUCK",
    title="the GPU is stuck at low power",
    cause="the power controller did not come back from a limit; a reboot does not reset it",
    remedy="shut the node down and unplug its power cable at both ends for a minute",
    match=reported("LOW_POWER_STUCK"),
    kind="state",
    severity=Severity.WARN,
)

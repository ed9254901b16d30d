from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="CLOCK_OFF",
    title="the node's clock is wrong",
    cause="no time service runs there, or not here",
    remedy="let both machines follow one time service (chrony, systemd-timesyncd)",
    match=reported("CLOCK_OFF"),
    kind="state",
    severity=Severity.WARN,
)

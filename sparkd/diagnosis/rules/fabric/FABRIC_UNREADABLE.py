from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="FABRIC_UNREADABLE",
    title="the node's network cannot be seen, so nothing of it is verified",
    cause="the agent runs in a container without the host's sysfs",
    remedy="run the agent on the host, or mount /sys into its container",
    match=reported("FABRIC_UNREADABLE"),
    kind="state",
    severity=Severity.WARN,
)

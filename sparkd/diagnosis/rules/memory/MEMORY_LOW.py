from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="MEMORY_LOW",
    title="memory is below the profile's floor",
    cause="ranks and page cache take more than the profile says",
    remedy="nothing, if it stays flat; else lower gpu-memory-utilization, or the floor if it is too strict",
    match=reported("MEMORY_LOW"),
    kind="state",
    severity=Severity.WARN,
)

from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="MEMORY_NEAR",
    title="memory is near the profile's floor",
    cause="ranks and page cache take nearly what the profile says",
    remedy="nothing",
    match=reported("MEMORY_NEAR"),
    kind="state",
    severity=Severity.NOTE,
)

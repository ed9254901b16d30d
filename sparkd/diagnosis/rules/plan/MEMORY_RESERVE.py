from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="MEMORY_RESERVE",
    title="gpu-memory-utilization leaves less than the reserve",
    cause="vLLM takes its share of the whole memory, whatever else runs",
    remedy="lower gpu-memory-utilization",
    match=reported("MEMORY_RESERVE"),
    kind="state",
    severity=Severity.WARN,
)

from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="STALE_SHM",
    title="shared memory belongs to no living process",
    cause="an engine that was not started by this agent was killed; on a GB10 this is GPU memory too",
    remedy="remove these files once nothing of that engine runs",
    match=reported("STALE_SHM"),
    kind="state",
    severity=Severity.WARN,
    reference="vllm-project/vllm#54002",
)

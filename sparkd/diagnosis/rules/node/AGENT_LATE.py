from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="AGENT_LATE",
    title="the agent does not get to run",
    cause="the node is short of memory or of processor time",
    remedy="if it stays so, end what else runs there",
    match=reported("AGENT_LATE"),
    kind="state",
    severity=Severity.WARN,
)

from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="KV_PAGES",
    title="most of the KV cache is padding",
    cause="pages of all layers are billed as the largest",
    remedy="give the drafter the target's KV dtype, or use a mod that gives it smaller pages",
    match=reported("KV_PAGES"),
    kind="state",
    severity=Severity.WARN,
)

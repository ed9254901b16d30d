from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="CERTIFICATE_ENDS",
    title="the node's certificate ends and was not renewed",
    cause="most often the node has no `openssl`, or the folder of its key cannot be written",
    remedy="cure that, or run `sparkd nodes add` for it again",
    match=reported("CERTIFICATE_ENDS"),
    kind="state",
    severity=Severity.WARN,
)

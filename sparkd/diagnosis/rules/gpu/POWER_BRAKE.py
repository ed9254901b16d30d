from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="POWER_BRAKE",
    title="the GPU gets too little power",
    cause="an adapter that cannot give what the node asks for",
    remedy="use the adapter that came with the node, straight from the wall",
    match=reported("POWER_BRAKE"),
    kind="state",
    severity=Severity.WARN,
)

from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="FABRIC_HALF",
    title="only one half of a port is used",
    cause="each half of a Spark's card hangs on PCIe lanes for about 100 Gb/s, and one cable lights both",
    remedy="give the other half an address in a network of its own, on every node",
    match=reported("FABRIC_HALF"),
    kind="state",
    severity=Severity.WARN,
    reference="tonyd2wild PR#35, dgx-spark-playbooks#102",
)

from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="LINK_SLOW",
    title="a link is slower than it could be",
    cause="a switch that negotiates may settle at 100 Gb/s; the slowest link sets the pace of all",
    remedy="set the port's speed on the switch (200G-baseCR4); see to the cable",
    match=reported("LINK_SLOW"),
    kind="state",
    severity=Severity.WARN,
    reference="NVIDIA/dgx-spark-playbooks, multi-sparks-through-switch",
)

from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="UNCLEAN_END",
    title="the node's last boot ended without a shutdown while a rank was there",
    cause="its power was cut, its kernel crashed, or it froze and was reset: the last look says how its memory was",
    remedy="if little memory was left, lower what the model uses; else see to the node's power and its console",
    match=reported("UNCLEAN_END"),
    kind="state",
    severity=Severity.WARN,
    reference="NVIDIA/open-gpu-kernel-modules#1358",
)

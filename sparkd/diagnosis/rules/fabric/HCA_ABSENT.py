from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="HCA_ABSENT",
    title="a variable names an RDMA device that the node does not have, or that is down",
    cause="device names differ between nodes, and change with cables and reboots",
    remedy="leave the variable out: sparkd finds the devices of each node at every launch",
    match=reported("HCA_ABSENT"),
    kind="state",
    severity=Severity.WARN,
)

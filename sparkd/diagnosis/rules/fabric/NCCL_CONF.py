from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="NCCL_CONF",
    title="a file that NCCL reads by itself leads ranks elsewhere",
    cause="nccl.conf of the node or of the ranks' user names what is not there, or another way than was chosen",
    remedy="take the variable out of that file; sparkd finds the value for each node at every launch",
    match=reported("NCCL_CONF"),
    kind="state",
    severity=Severity.WARN,
    reference="docs.nvidia.com/deeplearning/nccl, environment variables",
)

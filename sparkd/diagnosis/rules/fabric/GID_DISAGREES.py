from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="GID_DISAGREES",
    title="an RDMA port is left out: its RoCE v2 entry is not at the index of the others",
    cause="a rank has one NCCL_IB_GID_INDEX for all its ports",
    remedy="take surplus addresses off that interface, or set it down and up again",
    match=reported("GID_DISAGREES"),
    kind="state",
    severity=Severity.WARN,
)

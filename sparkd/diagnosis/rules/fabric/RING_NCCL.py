from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="RING_NCCL",
    title="this NCCL cannot tell the cables of a ring apart",
    cause="before 2.30 channels land on a port that leads to the other neighbour (ibv_modify_qp 110)",
    remedy="install NCCL 2.30 or later, or NVIDIA's branch dgxspark-3node-ring",
    match=reported("RING_NCCL"),
    kind="state",
    reference="NVIDIA/dgx-spark-playbooks, connect-three-sparks",
)

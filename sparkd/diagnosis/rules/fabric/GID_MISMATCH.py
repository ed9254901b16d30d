from sparkd.diagnosis.rule import Rule, log

RULE = Rule(
    id="GID_MISMATCH",
    title="RDMA used an address that this port does not have",
    cause="the index of the RoCE v2 entry differs between nodes, and moves while they run; an empty NCCL_IB_GID_INDEX means 0",
    remedy="leave NCCL_IB_GID_INDEX out: sparkd finds it for each node at every launch",
    match=log(
        "ibv_modify_qp",
        "local GID ::",
        pattern=r"ibv_modify_qp\b.*(local GID ::(?![0-9a-f])|\b(err(no|or)?:? *)?61\b|No data available|\b22\b.*Invalid argument)",
    ),
    reference="MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark PR #10; tonyd2wild PR #40",
)

from sparkd.diagnosis.rule import Rule, log

RULE = Rule(
    id="RING_ERR110",
    title="RDMA cannot connect: the other end does not answer",
    cause="in a ring of three nodes without a switch NCCL before 2.30 pairs ports that no cable joins; or the address has no way there",
    remedy="use NCCL 2.30 or later with NCCL_IB_MERGE_NICS=0 and NCCL_IB_SUBNET_AWARE_ROUTING=1; `ping -I` from each port shows who is joined",
    match=log("ibv_modify_qp", pattern=r"ibv_modify_qp\b.*\b(110|Connection timed out)\b"),
    reference="eugr/spark-vllm-docker docs/NETWORKING.md",
)

from sparkd.diagnosis.rule import Rule, log

RULE = Rule(
    id="MTU_MISMATCH",
    title="RDMA gave up: the other end took nothing",
    cause="an MTU that is not the same at both ends and on the switch, a link that went away, or a rank that ended",
    remedy="look for a rank that ended first; then `ping -M do -s 8972` between the fabric addresses",
    match=log("IBV_WC_RETRY_EXC_ERR", "IBV_WC_RNR_RETRY_EXC_ERR", "transport retry counter exceeded"),
    kind="collective",
    reference="tonyd2wild PR #40; NVIDIA/dgx-spark-playbooks#25",
)

from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="KHO_CMA",
    title="this kernel has lost count of its reserved memory: RDMA cannot register any",
    cause="kernels 7.0.0-1019-nvidia and 7.0.0-31 reserve memory for a handover that is not used",
    remedy="boot with kho=off",
    match=reported("KHO_CMA"),
    kind="state",
    retry="never",
    reference="MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#259",
)

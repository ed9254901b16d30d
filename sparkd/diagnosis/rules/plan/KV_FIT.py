from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="KV_FIT",
    title="the wanted context does not fit into the KV cache",
    cause="the rest of the memory after weights and run time is too small for it",
    remedy="lower max-model-len, choose a smaller KV dtype, or raise gpu-memory-utilization",
    match=reported("KV_FIT"),
    kind="state",
)

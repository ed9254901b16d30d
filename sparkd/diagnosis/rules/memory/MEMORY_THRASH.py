from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="MEMORY_THRASH",
    title="the node's memory thrashed",
    cause="the kernel read again and again what it had just thrown away",
    remedy="lower gpu-memory-utilization, max-num-seqs or max-model-len; `sparkd plan` shows the memory sum",
    match=reported("MEMORY_THRASH"),
    kind="end",
    retry="memory",
    reference="docs/watch.md",
)

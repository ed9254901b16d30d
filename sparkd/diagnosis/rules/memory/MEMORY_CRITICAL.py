from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="MEMORY_CRITICAL",
    title="the node had hardly any memory left",
    cause="the ranks, or another program, took what was left",
    remedy="lower gpu-memory-utilization, max-num-seqs or max-model-len; `sparkd plan` shows the memory sum",
    match=reported("MEMORY_CRITICAL"),
    kind="end",
    retry="memory",
    reference="docs/watch.md",
)

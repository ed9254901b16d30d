from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="MEMORY_PLUNGE",
    title="memory fell faster than anything could be done about it",
    cause="a load or a prefill took tens of GiB at once",
    remedy="lower gpu-memory-utilization, max-num-seqs or max-model-len; `sparkd plan` shows the memory sum",
    match=reported("MEMORY_PLUNGE"),
    kind="end",
    retry="memory",
    reference="docs/watch.md",
)

from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="UVM_THRASH",
    title="no free memory, and a UVM thread was busy with it",
    cause="the GPU's driver moves pages instead of computing: the state before a GB10 freezes",
    remedy="lower gpu-memory-utilization, max-num-seqs or max-model-len; `sparkd plan` shows the memory sum",
    match=reported("UVM_THRASH"),
    kind="end",
    retry="memory",
    reference="docs/watch.md",
)

from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="MEMORY_FIT",
    title="a rank does not fit into the node's memory",
    cause="weights, KV cache, run time and reserve are more than the node has",
    remedy="choose a layout with more nodes, or a smaller model or context",
    match=reported("MEMORY_FIT"),
    kind="state",
)

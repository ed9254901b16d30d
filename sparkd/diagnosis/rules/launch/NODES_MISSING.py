from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="NODES_MISSING",
    title="there are not enough nodes for the gang",
    cause="nodes are taken, drained, silent or unknown",
    remedy="free or add a node; `sparkd nodes list` shows them",
    match=reported("NODES_MISSING"),
    kind="state",
)

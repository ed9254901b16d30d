from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="NO_COMMON_NETWORK",
    title="there is no network that all nodes of a gang are in",
    cause="nodes of different networks were chosen, or one has lost its address",
    remedy="give each node an address in one network, or choose other nodes (--nodes)",
    match=reported("NO_COMMON_NETWORK"),
    kind="state",
)

from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="MEMORY_AVAILABLE",
    title="a rank does not fit into what is available",
    cause="something else holds the memory",
    remedy="end what else runs there, or reboot the node if nothing does",
    match=reported("MEMORY_AVAILABLE"),
    kind="state",
)

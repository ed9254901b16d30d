from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="NODE_LOST",
    title="a node does not answer any more",
    cause="its power, its kernel or both of its networks: neither the coordinator nor a member of the gang reaches it",
    remedy="look at that machine: its power, its console; the gang comes back with it, or with another node",
    match=reported("NODE_LOST"),
    kind="end",
    retry="normal",
)

from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="RING_TOO_LARGE",
    title="more than three nodes in a ring",
    cause="most pairs of them have no cable between them",
    remedy="connect them by a switch, or use three of them (--nodes)",
    match=reported("RING_TOO_LARGE"),
    kind="state",
    reference="NVIDIA/dgx-spark-playbooks, connect-three-sparks",
)

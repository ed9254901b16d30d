from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="START_REFUSED",
    title="the node refused to start the rank",
    cause="its agent knows something that the coordinator did not: a newer generation, a name that was used, a full disk",
    remedy="read the reason; `sparkd-agent status` on that node says more",
    match=reported("START_REFUSED"),
    kind="end",
    retry="normal",
)

from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="DECISION_FAILED",
    title="sparkd cannot decide about this deployment, and leaves it as it is",
    cause="a fault in sparkd itself; other deployments go on",
    remedy="`sparkd down NAME` ends it all the same; please report what the coordinator's log says of it",
    match=reported("DECISION_FAILED"),
    kind="state",
)

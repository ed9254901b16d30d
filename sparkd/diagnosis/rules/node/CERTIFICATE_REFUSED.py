from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="CERTIFICATE_REFUSED",
    title="the node's certificate is refused",
    cause="it ended, or it comes from another coordinator",
    remedy="run `sparkd nodes add` for it again",
    match=reported("CERTIFICATE_REFUSED"),
    kind="state",
)

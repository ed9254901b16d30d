from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="MTU_PATH",
    title="large packets do not get through, small ones do",
    cause="the other end, or the switch between, has a smaller MTU than the interface that sends",
    remedy="set the same MTU on both ends and, on the switch, at least as much",
    match=reported("MTU_PATH"),
    kind="state",
)

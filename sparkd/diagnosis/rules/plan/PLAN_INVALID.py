from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="PLAN_INVALID",
    title="no plan can be made of the profile on these nodes",
    cause="two parts of the profile contradict each other, or a node",
    remedy="correct what is named; `sparkd plan` tries it without starting anything",
    match=reported("PLAN_INVALID"),
    kind="state",
    retry="never",
)

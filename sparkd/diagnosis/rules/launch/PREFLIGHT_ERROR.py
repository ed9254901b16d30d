from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="PREFLIGHT_ERROR",
    title="a node cannot look at something before a launch",
    cause="its agent lacks a right or a program",
    remedy="read the reason; `sparkd-agent status` on that node lists what it lacks",
    match=reported("PREFLIGHT_ERROR"),
    kind="state",
)

from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="PREFLIGHT_SILENT",
    title="a node does not answer what is asked of it before a launch",
    cause="its agent is busy or gone",
    remedy="`sparkd-agent status` on that node; restart its agent",
    match=reported("PREFLIGHT_SILENT"),
    kind="state",
)

from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="TRAPPED_UMA",
    title="memory was not returned after the last generation",
    cause="the driver has not given back what the old rank held",
    remedy="reboot that node",
    match=reported("TRAPPED_UMA"),
    kind="state",
)

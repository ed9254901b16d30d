from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="CANARY_FAILED",
    title="the model is up and its answers are wrong",
    cause="weights, quantisation or a kernel do not belong together; or the canary of the profile expects too much",
    remedy="ask the model the canary's question yourself; correct the profile if the answer is good enough",
    match=reported("CANARY_FAILED"),
    kind="end",
    retry="normal",
)

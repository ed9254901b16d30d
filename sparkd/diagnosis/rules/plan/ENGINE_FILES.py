from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="ENGINE_FILES",
    title="a file of the profile does not reach the node",
    cause="an old agent, or the profile was sent without its files",
    remedy="ask with the sparkd command: it reads the files beside the profile; upgrade the agent",
    match=reported("ENGINE_FILES"),
    kind="state",
)

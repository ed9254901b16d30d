from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="ENGINE_FLAGS",
    title="the engine does not have a flag of the profile and would not start",
    cause="the flag came later, or was taken away",
    remedy="leave it out, or install a version that has it",
    match=reported("ENGINE_FLAGS"),
    kind="state",
    retry="never",
)

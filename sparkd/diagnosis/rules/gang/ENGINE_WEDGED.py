from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="ENGINE_WEDGED",
    title="the engine is frozen: requests wait and no counter of it moves",
    cause="one rank does not take part in a collective any more, and all others wait for it",
    remedy="nothing: the gang is started anew. While it hangs, `sparkd stacks NAME` shows where each process waits",
    match=reported("ENGINE_WEDGED"),
    kind="end",
    retry="normal",
)

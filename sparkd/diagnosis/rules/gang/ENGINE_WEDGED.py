from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="ENGINE_WEDGED",
    title="the engine is frozen: requests wait and no counter of it moves",
    cause="one rank does not take part in a collective any more, and all others wait for it",
    remedy="nothing: the gang is started anew. Where its threads stood is in the incident (`sparkd explain NAME`)",
    match=reported("ENGINE_WEDGED"),
    kind="end",
    retry="normal",
)

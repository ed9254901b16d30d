from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="MOD_UNKNOWN",
    title="a mod of the profile does not exist",
    cause="a name with a mistake, or a mod of a later sparkd",
    remedy="`sparkd mods list` shows those there are",
    match=reported("MOD_UNKNOWN"),
    kind="state",
)

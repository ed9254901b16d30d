from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="ENGINE_VARIABLES",
    title="the engine passes over a variable of the profile",
    cause="the variable came later, or was taken away",
    remedy="leave it out, or install a version that has it",
    match=reported("ENGINE_VARIABLES"),
    kind="state",
    severity=Severity.WARN,
)

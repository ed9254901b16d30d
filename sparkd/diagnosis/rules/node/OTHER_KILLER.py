from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="OTHER_KILLER",
    title="another program of this node ends processes",
    cause="GPU memory is not in a rank's RSS, so such a program may end sshd or half a gang instead",
    remedy="stop it on nodes that serve models, or tell it to spare everything but the ranks",
    match=reported("OTHER_KILLER"),
    kind="state",
    severity=Severity.NOTE,
)

from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="ROUTE_STRAY",
    title="a network was passed over: a node would send to another one outside of it",
    cause="a more precise route, or a second interface, leads elsewhere",
    remedy="`ip route get ADDRESS` shows the way; take the other route away",
    match=reported("ROUTE_STRAY"),
    kind="state",
    severity=Severity.WARN,
)

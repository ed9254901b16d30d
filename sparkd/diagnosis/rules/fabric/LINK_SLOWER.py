from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="LINK_SLOWER",
    title="the fabric interface became slower",
    cause="the link was negotiated anew",
    remedy="see to cable and transceiver; on a switch, set the port's speed instead of negotiating",
    match=reported("LINK_SLOWER"),
    kind="state",
    severity=Severity.WARN,
)

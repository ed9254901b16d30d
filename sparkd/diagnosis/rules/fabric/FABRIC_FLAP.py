from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="FABRIC_FLAP",
    title="the fabric interface loses its carrier again and again",
    cause="a cable, a transceiver or a port that is about to fail",
    remedy="swap the cable; NCCL does not survive a link that was away for its retries",
    match=reported("FABRIC_FLAP"),
    kind="state",
    severity=Severity.WARN,
)

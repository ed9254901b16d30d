from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="GID_MOVED",
    title="the index of a RoCE entry changed while the gang runs",
    cause="an address was added or set anew on that interface: the kernel makes its entries again",
    remedy="restart the deployment at a quiet moment: the index is found anew at every launch",
    match=reported("GID_MOVED"),
    kind="state",
    severity=Severity.WARN,
    reference="tonyd2wild PR#40 (report #38)",
)

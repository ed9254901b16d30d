from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="PCIE_BELOW_MAXIMUM",
    title="the card's PCIe link is below what card and slot can do",
    cause="firmware of before April 2026 wired half of the card too narrow, or the link trained badly",
    remedy="update the firmware; else shut down, take the node off power for a minute and start it again",
    match=reported("PCIE_BELOW_MAXIMUM"),
    kind="state",
    severity=Severity.WARN,
)

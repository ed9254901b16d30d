from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="FABRIC_NO_PATH",
    title="two nodes do not reach each other over the fabric",
    cause="no cable between them, different VLANs on the switch, or both drop all that comes in",
    remedy="see to cable, switch and firewalls; `ip neigh show dev INTERFACE` shows who answers",
    match=reported("FABRIC_NO_PATH"),
    kind="state",
)

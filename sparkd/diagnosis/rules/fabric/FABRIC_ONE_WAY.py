from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="FABRIC_ONE_WAY",
    title="packets between two nodes pass in one direction only",
    cause="a filter or a fault in a switch, a bridge or a cable; a route that leads elsewhere",
    remedy="see to switch and cable; `tcpdump -ni INTERFACE arp` shows what arrives",
    match=reported("FABRIC_ONE_WAY"),
    kind="state",
)

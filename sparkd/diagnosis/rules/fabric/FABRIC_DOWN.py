from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="FABRIC_DOWN",
    title="the fabric interface has no carrier",
    cause="a cable that came loose, or the other end is off",
    remedy="see to the cable and to the other end's port",
    match=reported("FABRIC_DOWN"),
    kind="state",
)

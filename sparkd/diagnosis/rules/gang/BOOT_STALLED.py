from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="BOOT_STALLED",
    title="the launch made no progress",
    cause="a rank waits for another one, for the network or for a disk",
    remedy="`sparkd logs` of the rank that is named; `boot.max_s` and the phases' deadlines are the profile's",
    match=reported("BOOT_STALLED"),
    kind="end",
    retry="normal",
)

from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="UNKILLABLE",
    title="a process cannot be ended",
    cause="it is stuck in the kernel, most often in the GPU driver",
    remedy="reboot that node",
    match=reported("UNKILLABLE"),
    kind="state",
    retry="never",
)

from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="DRIVER_MISMATCH",
    title="the NVIDIA driver was updated under the running kernel",
    cause="no new CUDA process can start before module and library are of one version",
    remedy="reboot this node",
    match=reported("DRIVER_MISMATCH"),
    kind="state",
)

from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="GPU_UNKNOWN",
    title="nothing is known of the GPU",
    cause="its driver does not answer",
    remedy="try nvidia-smi on this node; if it hangs too, reboot it",
    match=reported("GPU_UNKNOWN"),
    kind="state",
    severity=Severity.WARN,
)

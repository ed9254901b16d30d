from sparkd.diagnosis.ended import ended_by
from sparkd.diagnosis.rule import Rule

RULE = Rule(
    id="PROCESS_CRASHED",
    title="a process of the rank crashed",
    cause="its own code did what the processor refuses: a fault of vLLM, of a kernel of it, of the driver or of memory",
    remedy="if it comes back at the same place, try another version of vLLM or `--set engine.args.enforce-eager=true`",
    match=ended_by(11, 7, 4, 8, 5),
    kind="exit",
)

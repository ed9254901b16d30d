from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="CHECKPOINT_BYTES",
    title="a file of the model holds other bytes on one node than on the others",
    cause="a disk or a copy has damaged it, or it is of another revision with equal shapes; sizes and headers agree",
    remedy="remove that file there and copy it anew (rsync passes over a file of equal size and time)",
    match=reported("CHECKPOINT_BYTES"),
    kind="state",
    retry="never",
)

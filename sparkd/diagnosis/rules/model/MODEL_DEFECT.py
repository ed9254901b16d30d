from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="MODEL_DEFECT",
    title="a file of the model cannot be used",
    cause="it was cut off while it was copied, or is a pointer to the file instead",
    remedy="correct that file on the node, or copy it there again",
    match=reported("MODEL_DEFECT"),
    kind="state",
    retry="never",
)

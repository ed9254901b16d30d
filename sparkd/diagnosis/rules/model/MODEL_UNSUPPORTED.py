from sparkd.diagnosis.rule import Rule, log

RULE = Rule(
    id="MODEL_UNSUPPORTED",
    title="this vLLM does not know the model",
    cause="the model's architecture came later than this version, or needs a mod",
    remedy="use the vLLM version that the profile states",
    match=log(
        "Model architectures [",
        "does not recognize this architecture",
        pattern=r"Model architectures \[.*\] (are not supported|failed to be inspected)|does not recognize",
    ),
    retry="never",
)

from sparkd.diagnosis.rule import Rule, log

RULE = Rule(
    id="ARGUMENT_INVALID",
    title="vLLM refused an argument",
    cause="a flag or a value that this version of vLLM does not take",
    remedy="correct the argument named in the line above; `sparkd plan` shows where it came from",
    match=log(
        "error: ",
        "ValidationError: ",
        pattern=r"error: (unrecognized arguments|argument [^ ]+:|ambiguous option)|ValidationError: \d+ validation error",
    ),
    retry="never",
)

from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="UNKNOWN",
    title="a rank ended, and nothing says why",
    cause="unknown",
    remedy="read the lines above; `sparkd logs NAME --previous` has all of them",
    match=reported("UNKNOWN"),
    kind="end",
    retry="normal",
)

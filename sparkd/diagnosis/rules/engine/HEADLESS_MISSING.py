from sparkd.diagnosis.rule import Rule, log

RULE = Rule(
    id="HEADLESS_MISSING",
    title="a follower was started as if it were the head",
    cause="`--headless` is missing on a node with a rank above 0: both sides then wait for each other",
    remedy="start the ranks with sparkd, which sets it; by hand, add `--headless` to every rank but 0",
    match=log("should not be called on follower node"),
    retry="never",
    reference="facts/vllm.md §2.1",
)

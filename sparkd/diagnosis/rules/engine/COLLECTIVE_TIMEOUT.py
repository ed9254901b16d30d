from sparkd.diagnosis.rule import Rule, log

RULE = Rule(
    id="COLLECTIVE_TIMEOUT",
    title="a collective did not return in time",
    cause="one rank does not take part: it ended, is frozen, or its link is down",
    remedy="look at the rank that is silent: its exit, its node, its link",
    match=log(
        "Watchdog caught collective operation timeout",
        "eartbeat monitor timed out",
        "Timed out waiting",
        "waitForInput timeout",
        pattern=r"Watchdog caught collective operation timeout|[Hh]eartbeat monitor timed out|(gloo|Gloo|tcp/).*Timed out waiting \d+ms|waitForInput timeout",
    ),
    kind="collective",
    reference="vllm-project/vllm#42742",
)

from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="ENV_DIVERTS",
    title="a variable of the node's own is kept from ranks",
    cause="it would lead them past each other: a proxy, or another place to meet",
    remedy="take it out of [rank.env] in that node's agent.toml",
    match=reported("ENV_DIVERTS"),
    kind="state",
    severity=Severity.NOTE,
)

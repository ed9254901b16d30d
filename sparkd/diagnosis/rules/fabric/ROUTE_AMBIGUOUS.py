from sparkd.diagnosis.rule import Rule, reported
from sparkd.records.verdict import Severity

RULE = Rule(
    id="ROUTE_AMBIGUOUS",
    title="two interfaces of a node are in one network",
    cause="packets leave, and ARP is answered, by either: SSH works while NCCL hangs one way",
    remedy="give each half a network of its own",
    match=reported("ROUTE_AMBIGUOUS"),
    kind="state",
    severity=Severity.WARN,
    reference="eugr/spark-vllm-docker PR#55, spark-arena/sparkrun#208",
)

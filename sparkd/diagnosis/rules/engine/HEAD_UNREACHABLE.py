from sparkd.diagnosis.rule import Rule, log

RULE = Rule(
    id="HEAD_UNREACHABLE",
    title="a follower cannot reach the head's rendezvous port",
    cause="the head was never started or has ended, its address is another one, or a firewall keeps the port shut",
    remedy="look at rank 0 first; then `nc -vz HEAD PORT` from that node",
    match=log(
        "The client socket has timed out after", pattern=r"The client socket has timed out after \d+\s?ms"
    ),
    kind="collective",
    reference="facts/vllm.md §2.1",
)

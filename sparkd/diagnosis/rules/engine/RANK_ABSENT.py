from sparkd.diagnosis.rule import Rule, log

RULE = Rule(
    id="RANK_ABSENT",
    title="not all ranks came to the rendezvous",
    cause="a rank was never started, ended before, or cannot reach the head's port",
    remedy="see which ranks have a log and how it ends; then the port: `nc -vz HEAD PORT` from that node",
    match=log(
        "clients joined",
        pattern=r"DistStoreError: Timed out after \d+ seconds waiting for clients\. \d+/\d+ clients joined",
    ),
    kind="collective",
    reference="vllm-project/vllm#44878",
)

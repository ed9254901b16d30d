from sparkd.diagnosis.rule import Rule, log

RULE = Rule(
    id="IMAGE_MISMATCH",
    title="nodes run different images",
    cause="one of them pulled or built it at another time",
    remedy="give all nodes the same image: `docker image inspect` shows its id",
    match=log("mage mismatch", pattern=r"[Ii]mage mismatch\b"),
    retry="never",
    reference="eugr/spark-vllm-docker#339",
)

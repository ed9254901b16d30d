from sparkd.diagnosis.rule import Rule, log

RULE = Rule(
    id="RAY_MEMMON",
    title="Ray ended a rank because the node's memory was nearly used up",
    cause="Ray's monitor counts a Spark's one pool of memory as the processor's and ends workers at 95 %",
    remedy="start the model without Ray; to go on with Ray, set RAY_memory_monitor_refresh_ms=0",
    match=log(
        "ray.exceptions.OutOfMemoryError", "node running low on memory", "killed due to the node running low"
    ),
    kind="end",
    retry="memory",
    reference="MiaAI-Lab/GLM-5.3-Flash-NVFP4-Dual-DGX-Spark PR #2",
)

from sparkd.diagnosis.rule import Rule, log

RULE = Rule(
    id="ENGINE_DEAD_CONTAINER_UP",
    title="the engine is dead while its server still runs",
    cause="a rank did not answer, or another process of the engine had ended before",
    remedy="look at what the other ranks said before this; with memory short just before, lower what the model uses",
    match=log("EngineDeadError", "RPC call to ", pattern=r"EngineDeadError|RPC call to \w+ timed out"),
    kind="collective",
    reference="vllm-project/vllm#40926; eugr/spark-vllm-docker#321",
)

from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="ENGINE_VERSION",
    title="the node's vLLM is not a version that the profile allows",
    cause="the profile was made for other versions",
    remedy="install such a version, or change engine.vllm if you know that this one serves the model",
    match=reported("ENGINE_VERSION"),
    kind="state",
    retry="never",
)

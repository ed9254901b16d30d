from sparkd.diagnosis.rule import Rule, log

RULE = Rule(
    id="ENGINE_MISSING",
    title="the engine's program could not be started",
    cause="the interpreter or vLLM is not where the agent's configuration says",
    remedy="correct [engine.default] in the agent's configuration on that node",
    match=log(
        "cannot execute ", "No module named", pattern=r"cannot execute |No module named '?vllm(['\s]|$)"
    ),
    retry="never",
)

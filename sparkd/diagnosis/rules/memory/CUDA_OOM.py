from sparkd.diagnosis.rule import Rule, log

RULE = Rule(
    id="CUDA_OOM",
    title="the engine ran out of memory",
    cause="weights, KV cache and work space together are more than the node has left",
    remedy="lower gpu-memory-utilization, max-num-seqs or max-model-len; `sparkd plan` shows the memory sum",
    match=log(
        "OutOfMemoryError",
        "CUDA out of memory",
        "CUDA error: out of memory",
        "NV_ERR_NO_MEMORY",
        pattern=r"^(?!.*out of resource).*((?<!ray\.exceptions\.)OutOfMemoryError\b(: |$)|CUDA (error: )?out of memory|NV_ERR_NO_MEMORY)",
    ),
    retry="memory",
    prevents=("engine.args.max-num-seqs=4",),
)

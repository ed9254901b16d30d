from sparkd.diagnosis.rule import Rule, log

RULE = Rule(
    id="MEM_FREE_GATE",
    title="not enough free memory for the engine",
    cause="vLLM asks for a share of the whole memory, and counts what the page cache holds as used",
    remedy="free memory on that node, or lower `gpu-memory-utilization` with --set",
    match=log(
        "Free memory on device",
        "No available memory for the cache blocks",
        pattern=r"Free memory on device .* is less than desired|No available memory for the cache blocks",
    ),
    retry="memory",
    prevents=("engine.args.gpu-memory-utilization=0.8",),
    reference="vllm-project/vllm#48140, #35313",
)

from sparkd.diagnosis.rule import Rule, log

RULE = Rule(
    id="SHM_LEAK",
    title="/dev/shm is full",
    cause="files of engines that were killed stay in shared memory (`vllm_offload_*`, `psm_*`, `nccl-*`), until a next start finds no room",
    remedy="once no engine runs on that node, remove those files from /dev/shm; the agent does so for its own ranks",
    match=log(
        "/dev/shm",
        "</torch_",
        "shared memory",
        "Bad address",
        pattern=r"(Insufficient|Not enough|insufficient) (space|size|shared memory).*/dev/shm|/dev/shm.*(No space left|too small|insufficient|ENOSPC)|"
        r"(No space left|ENOSPC|error while creating shared memory segment).*/dev/shm|(</torch_|shared memory).*No space left|OSError: \[Errno 14\] Bad address",
    ),
    reference="vllm-project/vllm#54002, #51579; llm-d/llm-d#352",
)

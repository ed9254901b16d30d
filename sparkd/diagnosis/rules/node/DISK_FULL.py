from sparkd.diagnosis.rule import Rule, log

RULE = Rule(
    id="DISK_FULL",
    title="a disk of the node is full",
    cause="logs, images, caches of compiled kernels or a download took the last of it",
    remedy="make room there: `df -h` shows which disk, `du -xsh /* | sort -h` who filled it",
    match=log(
        "No space left on device",
        "ENOSPC",
        "Disk quota exceeded",
        pattern=r"^(?!.*/dev/shm).*(No space left on device|ENOSPC|Disk quota exceeded)",
    ),
    retry="never",
    reference="eugr/spark-vllm-docker#339",
)

"""Shared memory that a killed engine left behind and that nobody maps any more (case 13)."""

import time
from pathlib import Path
from typing import Final

from sparkd_agent.procfs import ProcFs

_PREFIXES: Final = ("vllm_offload_", "psm_", "nccl-", "torch_")
"""Of vLLM's message queue and offloading, NCCL's transport, and torch's tensors. Semaphores are too small."""
_YOUNG_S: Final = 60.0
"""A file may be made a moment before it is mapped."""


def unmapped(procfs: ProcFs, root: Path = Path("/dev/shm")) -> list[tuple[str, int]]:  # noqa: S108 - not temporary
    """Path and bytes. Reads what every process maps, but only if there is such a file at all."""
    found = {}
    try:
        for path in root.iterdir():
            stat = path.lstat()
            if path.name.startswith(_PREFIXES) and time.time() - stat.st_mtime > _YOUNG_S and stat.st_size:
                found[stat.st_dev, stat.st_ino] = (str(path), stat.st_size)
    except OSError:
        return []
    if not found:
        return []
    for pid in procfs.pids():
        for file in procfs.files_under(pid, str(root)):
            found.pop((file.device, file.inode), None)
    return list(found.values())

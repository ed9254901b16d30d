from collections.abc import Iterator
from typing import Final

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule, log
from sparkd.records.defaults import DEFAULTS, MIB
from sparkd.records.verdict import Severity

_USES: Final = {"state": "the agent's state", "temporary": "temporary files"}
"""A full disk of models serves as well as an empty one."""
_LINE: Final = log(
    "No space left on device",
    "ENOSPC",
    "Disk quota exceeded",
    pattern=r"^(?!.*(/dev/shm|</torch_|shared memory)).*(No space left on device|ENOSPC|Disk quota exceeded)",
)


def _match(evidence: Evidence) -> Iterator[Found]:
    yield from _LINE(evidence)
    for member in evidence.members:
        for disk in member.machine.disks if member.machine is not None else ():
            full = disk.use == "state" and disk.free < DEFAULTS.disk_block_bytes
            low = min(DEFAULTS.enrol_disk_bytes, DEFAULTS.disk_warn_share * disk.total)
            if disk.use in _USES and (full or disk.free < low):
                yield Found(
                    f"{disk.path} ({_USES[disk.use]}): {disk.free / MIB:.0f} MiB of {disk.total / MIB:.0f} free",
                    node=member.name,
                    title="no room is left on a disk" if full else "little room is left on a disk",
                    remedy=f"see what takes it, on {member.name}: du -xh --max-depth=2 {disk.path}",
                    severity=Severity.BLOCK if full else Severity.WARN,
                )


RULE = Rule(
    id="DISK_FULL",
    title="a disk of the node is full",
    cause="logs, images, caches of compiled kernels or a download took the last of it",
    remedy="make room there: `df -h` shows which disk, `du -xsh /* | sort -h` who filled it",
    match=_match,
    needles=_LINE.needles,
    retry="never",
    reference="eugr/spark-vllm-docker#339",
)

from collections.abc import Iterator

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule
from sparkd.records.defaults import DEFAULTS, MIB


def _match(evidence: Evidence) -> Iterator[Found]:
    """Plain processes share the node's shared memory; a unit of systemd has one of its own."""
    for member in evidence.members:
        machine = member.machine
        if machine is None or member.local or member.runtime != "process" or machine.shm_free is None:
            continue
        if machine.shm_free < DEFAULTS.shm_least_bytes:
            total = (machine.shm_total or 0) / MIB
            yield Found(f"{machine.shm_free / MIB:.0f} MiB of {total:.0f} MiB are free", node=member.name)


RULE = Rule(
    id="SHM_SPACE",
    title="there is too little shared memory for vLLM's message queues",
    cause="killed engines left files in it, or it was made small, as in a container",
    remedy="remove what no process uses there, or: mount -o remount,size=10g /dev/shm",
    match=_match,
    kind="state",
    reference="vllm-project/vllm#54002",
)

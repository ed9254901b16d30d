from collections.abc import Iterator

from sparkd.diagnosis.ended import NEEDLES, ends_of, found_end
from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule

_SIGABRT = 6


def _match(evidence: Evidence) -> Iterator[Found]:
    return (found_end(end) for end in ends_of(evidence) if end.signal == _SIGABRT and end.was_ready)


RULE = Rule(
    id="IDLE_SIGABRT",
    title="a process of a serving rank gave itself up",
    cause="most likely NCCL's heartbeat monitor, which aborts (SIGABRT) after a long idle time; reported, not proved",
    remedy="nothing: the gang is started anew. If it comes back, set TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC higher in the profile's env",
    match=_match,
    kind="exit",
    prevents=("env.TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=7200",),
    needles=NEEDLES,
    reference="vllm-project/vllm#42742",
)

from collections.abc import Iterator

from sparkd.diagnosis.ended import NEEDLES, ends_of, found_end
from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule

_SIGABRT = 6


def _match(evidence: Evidence) -> Iterator[Found]:
    return (found_end(end) for end in ends_of(evidence) if end.signal == _SIGABRT and not end.was_ready)


RULE = Rule(
    id="PROCESS_ABORTED",
    title="a process of the rank gave itself up",
    cause="a check in native code failed (SIGABRT): NCCL, CUDA or the allocator",
    remedy="the lines before it say which check; `sparkd logs` of that rank has them",
    match=_match,
    kind="exit",
    needles=NEEDLES,
)

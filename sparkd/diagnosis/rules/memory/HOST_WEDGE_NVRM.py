from collections.abc import Iterator

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule, kernel, reported

_LINE = kernel("NV_ERR_NO_MEMORY")
_REPORTED = reported("HOST_WEDGE_NVRM")


def _match(evidence: Evidence) -> Iterator[Found]:
    yield from _REPORTED(evidence)
    yield from _LINE(evidence)


RULE = Rule(
    id="HOST_WEDGE_NVRM",
    title="the GPU's driver got no memory any more",
    cause="the driver asks the kernel in a way that never wakes its OOM killer: the host freezes instead",
    remedy="lower gpu-memory-utilization, max-num-seqs or max-model-len; `sparkd plan` shows the memory sum",
    match=_match,
    kind="end",
    retry="memory",
    needles=_LINE.needles,
    reference="NVIDIA/open-gpu-kernel-modules#1358",
)

from collections.abc import Iterator

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule, kernel, reported

_LINE = kernel("NVRM: Xid")
_REPORTED = reported("GPU_XID")


def _match(evidence: Evidence) -> Iterator[Found]:
    yield from _REPORTED(evidence)
    yield from _LINE(evidence)


RULE = Rule(
    id="GPU_XID",
    title="the GPU's driver reports a fault",
    cause="a fault of the GPU, of its driver or of a program on it: the number says which",
    remedy="look the number up in NVIDIA's list of Xid errors; if it comes back, reboot the node",
    match=_match,
    kind="end",
    needles=_LINE.needles,
)

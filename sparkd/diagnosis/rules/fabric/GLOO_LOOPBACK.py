from collections.abc import Iterator

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule, log

_FALLBACK = log("Using the loopback address as fallback")
_FAILED = log("connectFullMesh failed")


def _match(evidence: Evidence) -> Iterator[Found]:
    """The fall-back alone is harmless where all ranks are on one machine."""
    failed = list(_FAILED(evidence))
    yield from failed
    if failed:
        yield from _FALLBACK(evidence)


RULE = Rule(
    id="GLOO_LOOPBACK",
    title="gloo offered the others an address that only this node can reach",
    cause="the node's own name resolves to 127.0.1.1, or to nothing, so gloo took the loopback interface",
    remedy="set GLOO_SOCKET_IFNAME, as sparkd does for each node; `getent hosts $(hostname)` shows what the name means",
    match=_match,
    needles=(*_FALLBACK.needles, *_FAILED.needles),
    reference="aws-samples/aws-do-eks PR #50; vllm-project/vllm#7074, #5094",
)

from collections.abc import Iterator

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule
from sparkd.diagnosis.rules.fabric import CX7_DEGRADED
from sparkd.records.verdict import Severity

_SHARE = 0.55
"""Two halves of a Spark's port carry 151-192 Gb/s by NCCL's account, one alone 98 (half of 200)."""


def _match(evidence: Evidence) -> Iterator[Found]:
    test = evidence.collective
    if test is None or test.transport != "rdma" or test.link_mbit is None or test.best_mbit is None:
        return
    if test.best_mbit < _SHARE * test.link_mbit and not any(CX7_DEGRADED.RULE.match(evidence)):
        yield Found(
            f"{', '.join(test.names)}: {test.best_mbit / 1000:.1f} Gb/s over RDMA, "
            f"the links should carry {test.link_mbit / 1000:.0f} Gb/s"
        )


RULE = Rule(
    id="COLLECTIVE_SLOW",
    title="an all-reduce is at most half as fast as the links",
    cause="NCCL uses one half of the port only (each hangs on PCIe lanes for about 100 Gb/s), or a link on the way is slower",
    remedy="`sparkd fabric show`: both halves want an address and a place in NCCL_IB_HCA; `NET/IB : Using` in the probe's log names what NCCL took",
    match=_match,
    kind="state",
    severity=Severity.WARN,
    reference="NVIDIA/dgx-spark-playbooks#102; 161 Gb/s with both halves, 98 with one",
)

from collections.abc import Iterator

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule
from sparkd.records.verdict import Severity

_LINK_MBIT = 90_000
_MOST_MBIT = 25_000
"""13 Gb/s were measured; anything up to twice that is no tuning, and half a port does four times as much."""


def _match(evidence: Evidence) -> Iterator[Found]:
    test = evidence.collective
    if test is None or test.transport != "rdma" or test.link_mbit is None or test.best_mbit is None:
        return
    if test.link_mbit >= _LINK_MBIT and test.best_mbit <= _MOST_MBIT:
        yield Found(
            f"{', '.join(test.names)}: {test.best_mbit / 1000:.1f} Gb/s over RDMA, "
            f"the links should carry {test.link_mbit / 1000:.0f} Gb/s"
        )


RULE = Rule(
    id="CX7_DEGRADED",
    title="the link says that it is fast and delivers a tenth of it",
    cause="a ConnectX-7 that came up badly after a boot or a plug: its counters and its PCIe link look well",
    remedy="`sparkd fabric test` shows which pair; shut that node down, take it off power for a minute, start it; a restart is not enough",
    match=_match,
    kind="state",
    severity=Severity.WARN,
    reference="NVIDIA/dgx-spark-playbooks PR #108; NVIDIA forum 363461",
)

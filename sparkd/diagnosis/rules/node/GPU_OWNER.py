from collections.abc import Iterator

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.owners import containers, listed, owners
from sparkd.diagnosis.rule import Found, Rule
from sparkd.records.defaults import GIB
from sparkd.records.verdict import Severity


def _match(evidence: Evidence) -> Iterator[Found]:
    for member in evidence.members:
        found = owners(member)
        if not found:
            continue
        pids = " ".join(str(one.pid) for one in found if one.container is None)
        kill = f", or on {member.name}: kill {pids}" if pids else ""
        holds = any((one.gpu_bytes or 0) >= GIB or one.rss_bytes >= GIB for one in found)
        yield Found(
            listed(found),
            node=member.name,
            remedy=f"end it where it was started{containers(found)}{kill}",
            severity=Severity.BLOCK if holds else Severity.WARN,
        )


RULE = Rule(
    id="GPU_OWNER",
    title="another program computes on this node",
    cause="a GB10 has one pool of memory, and two engines do not fit into it",
    remedy="end it where it was started",
    match=_match,
    kind="state",
)

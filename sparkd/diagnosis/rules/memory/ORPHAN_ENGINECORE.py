from collections.abc import Iterator

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.owners import listed, orphans
from sparkd.diagnosis.rule import Found, Rule


def _match(evidence: Evidence) -> Iterator[Found]:
    for member in evidence.members:
        if found := orphans(member):
            pids = " ".join(str(one.pid) for one in found)
            yield Found(listed(found), node=member.name, remedy=f"on {member.name}: kill -9 {pids}")


RULE = Rule(
    id="ORPHAN_ENGINECORE",
    title="an engine without its server is left on this node",
    cause="its API server was killed alone; an engine keeps its memory until it is ended itself",
    remedy="end it by its pid",
    match=_match,
    kind="state",
    reference="vllm-project/vllm#47266, #48234",
)

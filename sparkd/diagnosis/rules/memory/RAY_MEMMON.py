from collections.abc import Iterator

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.owners import containers, listed, ray
from sparkd.diagnosis.rule import Found, Rule, log

_LINE = log(
    "ray.exceptions.OutOfMemoryError", "node running low on memory", "killed due to the node running low"
)


def _match(evidence: Evidence) -> Iterator[Found]:
    yield from _LINE(evidence)
    for member in evidence.members:
        if found := ray(member):
            yield Found(
                listed(found),
                node=member.name,
                title="Ray runs on this node",
                cause="its memory monitor ends ranks at 95 % of the memory, which loading reaches on a Spark",
                remedy=f"on {member.name}: ray stop{containers(found)}",
            )


RULE = Rule(
    id="RAY_MEMMON",
    title="Ray ended a rank because the node's memory was nearly used up",
    cause="Ray's monitor counts a Spark's one pool of memory as the processor's and ends workers at 95 %",
    remedy="start the model without Ray; to go on with Ray, set RAY_memory_monitor_refresh_ms=0",
    match=_match,
    needles=_LINE.needles,
    kind="end",
    retry="memory",
    reference="MiaAI-Lab/GLM-5.3-Flash-NVFP4-Dual-DGX-Spark PR #2",
)

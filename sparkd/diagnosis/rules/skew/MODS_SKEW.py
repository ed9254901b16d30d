from collections.abc import Iterator

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.odd import fact, odd_ones
from sparkd.diagnosis.rule import Found, Rule


def _match(evidence: Evidence) -> Iterator[Found]:
    if evidence.asked is not None and evidence.asked.mods:
        yield from odd_ones(evidence.members, {"set of mods": fact(lambda machine: machine.mods)})


RULE = Rule(
    id="MODS_SKEW",
    title="other mods than on the other nodes",
    cause="its agent is of another version, and brings other changes to vLLM along",
    remedy="sparkd nodes upgrade",
    match=_match,
    kind="state",
    retry="never",
)

from collections.abc import Iterator

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.odd import engine_of, engines_matter, odd_ones
from sparkd.diagnosis.rule import Found, Rule
from sparkd.records.preflight import Member
from sparkd.records.verdict import Severity


def _match(evidence: Evidence) -> Iterator[Found]:
    versions = {engine.packages.get("vllm") for member in evidence.members if (engine := engine_of(member))}
    if len(versions) == 1 and engines_matter(evidence):
        yield from odd_ones(evidence.members, {"build of vLLM": _build})


def _build(member: Member) -> str | None:
    engine = engine_of(member)
    return engine.build if engine is not None else None


RULE = Rule(
    id="ENGINE_BUILD_SKEW",
    title="the same version of vLLM, but other files than on the other nodes",
    cause="development builds share a version; or somebody changed a file there",
    remedy="install the same wheel on all nodes",
    match=_match,
    kind="state",
    severity=Severity.WARN,
)

from collections.abc import Iterator

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.odd import engines_matter, odd_ones, package
from sparkd.diagnosis.rule import Found, Rule


def _match(evidence: Evidence) -> Iterator[Found]:
    looks = {"vLLM": package("vllm"), "torch": package("torch"), "NCCL": package("nccl")}
    if engines_matter(evidence):
        yield from odd_ones(evidence.members, looks)


RULE = Rule(
    id="ENGINE_SKEW",
    title="another vLLM, torch or NCCL than on the other nodes",
    cause="ranks of different versions wait for each other in different places, or compute different things",
    remedy="install the same there; the interpreter is that of [engine.default] in the node's agent.toml",
    match=_match,
    kind="state",
    retry="never",
    reference="eugr/spark-vllm-docker#339",
)

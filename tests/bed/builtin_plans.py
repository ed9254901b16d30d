"""The plans of the built-in profiles, each on the nodes that it is for.

    .venv/bin/python -m tests.bed.builtin_plans

writes them to tests/plans/ anew: after a change of a profile, read the difference before committing it.
"""

from dataclasses import replace
from pathlib import Path

import msgspec

from sparkd.local_facts import local_node_facts
from sparkd.profile.load import load_source
from sparkd.profile.lookup import builtin_profiles
from sparkd.profile.merge import resolve
from sparkd.profile.plan import build_plan
from sparkd.profile.show import plan_lines
from sparkd.records.plan import Plan
from sparkd.records.report import NodeFacts

TESTS = Path(__file__).parents[1]
GOLDEN = TESTS / "plans"
EIGHT_SPARKS = tuple(
    msgspec.json.decode(path.read_bytes(), type=NodeFacts)
    for path in sorted((TESTS / "fixtures" / "sparks").glob("spark-*.json"))
)


def builtin_names() -> list[tuple[str, str | None]]:
    """Every built-in profile by file name, alone and with each of its variants."""
    sources = {path.stem: load_source(path) for path in sorted(builtin_profiles().glob("*.yaml"))}
    return [(name, variant) for name, source in sources.items() for variant in (None, *source.variants)]


def golden_file(name: str, variant: str | None) -> Path:
    return GOLDEN / (f"{name}@{variant}.txt" if variant else f"{name}.txt")


def builtin_plan(name: str, variant: str | None, version: str | None = None) -> Plan:
    """`version` is that of the engines, instead of the one in the facts."""
    source = load_source(builtin_profiles() / f"{name}.yaml")
    intent = resolve(source, variants=[variant] if variant else []).intent
    ranks = intent.profile["layout"]["tp"] * intent.profile["layout"]["pp"]
    nodes = EIGHT_SPARKS[:ranks]
    if name == "tiny":
        nodes = local_node_facts(ranks, Path("/opt/vllm"), [Path("/srv/models")])
    if version is not None:
        engines = tuple(replace(engine, version=version) for engine in nodes[0].engines)
        nodes = tuple(replace(node, engines=engines) for node in nodes)
    return build_plan(
        source.name, intent, nodes, generation=1, serial=1, api_port=8100, rendezvous_port=29600
    )


def builtin_text(name: str, variant: str | None) -> str:
    return "\n".join(plan_lines(builtin_plan(name, variant))) + "\n"


if __name__ == "__main__":
    for asked in builtin_names():
        golden_file(*asked).write_text(builtin_text(*asked))

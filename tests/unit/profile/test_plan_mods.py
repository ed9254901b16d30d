"""Mods in a plan: told to every rank, and refused by name only where they do not exist."""

import json

from sparkd.profile.load import parse_source
from sparkd.profile.merge import resolve
from sparkd.profile.plan import build_plan
from sparkd.records.plan import Plan
from sparkd.records.report import EngineFacts, NodeFacts
from sparkd.records.verdict import Severity

PROFILE = """
schema: sparkd/v1
name: t
model: {path: m}
layout: {tp: 2}
mods:
  - {name: mimo-fused-qkv, settings: {order: plain}}
  - {name: no-such-mod, required: false, unknown: try}
variants:
  without: {mods: []}
"""


def plan(variant: str | None = None) -> Plan:
    nodes = [
        NodeFacts(
            id=name,
            name=name,
            address=f"10.0.0.{at}",
            fabric_address=f"10.1.0.{at}",
            engines=(EngineFacts("default", ("/opt/vllm/bin/python",), "0.33.0"),),
            model_roots=("/models",),
        )
        for at, name in enumerate(("a", "b"), 1)
    ]
    intent = resolve(parse_source(PROFILE, "t.yaml"), variants=(variant,) if variant else ()).intent
    return build_plan("t", intent, nodes, generation=1, serial=1, api_port=8100, rendezvous_port=29600)


def test_every_rank_is_told_which_mods_and_how() -> None:
    for rank in plan().ranks:
        assert json.loads(rank.spec.env["SPARKD_MODS"]) == [
            {"name": "mimo-fused-qkv", "settings": {"order": "plain"}},
            {"name": "no-such-mod", "required": False, "unknown": "try"},
        ]
        (shown,) = [variable for variable in rank.env if variable.name == "SPARKD_MODS"]
        assert shown.origin == "profile"


def test_without_mods_nothing_is_told() -> None:
    assert all("SPARKD_MODS" not in rank.spec.env for rank in plan("without").ranks)


def test_a_mod_that_does_not_exist_is_named_with_those_that_do() -> None:
    (verdict,) = [found for found in plan().verdicts if found.id == "MOD_UNKNOWN"]
    assert (verdict.severity, verdict.title) == (Severity.WARN, "mod no-such-mod does not exist")
    assert "mimo-fused-qkv" in verdict.remedy

"""The memory sum, and what speaks against it."""

from typing import Any

import pytest

from sparkd.profile.kv import kv_beside, kv_need
from sparkd.profile.load import parse_source
from sparkd.profile.memory import memory_lines, memory_notes, memory_verdicts, need_bytes
from sparkd.profile.merge import resolve
from sparkd.profile.schema import Profile
from sparkd.records.defaults import GIB
from sparkd.records.report import NodeFacts
from sparkd.records.verdict import Severity

# MiMo-V2.5 with its DFlash drafter: shapes of facts that the planner of vLLM 0.33 was asked about.
TEXT = """
schema: sparkd/v1
name: p
model: {path: x}
layout: {tp: 2}
engine:
  vllm: ">=0.33,<0.34"
  args:
    kv-cache-dtype: fp8
    gpu-memory-utilization: 0.84
    max-model-len: 1000000
    max-num-batched-tokens: 4096
    async-scheduling: false
    speculative-config: {method: dflash, num_speculative_tokens: 7}
memory:
  weights_gib: 88
  runtime_gib: 4
  load_spike_gib: 4
  reserve_gib: 8
  kv:
    layers:
      - {count: 9, heads: 4, key: 192, value: 128}
      - {count: 39, heads: 8, key: 192, value: 128, window: 128}
      - {count: 5, heads: 8, key: 128, value: 128, window: 1024, draft: true}
"""
BF16_DRAFT = "engine.args.speculative-config.kv_cache_dtype=bfloat16"


def profile_of(*sets: str) -> Profile:
    return resolve(parse_source(TEXT, "p.yaml"), sets=sets).profile


def node(total_gib: float, number: int = 1, **changes: Any) -> NodeFacts:
    name = f"spark-{number}"
    return NodeFacts(name, name, "10.0.0.1", "192.168.7.1", memory_total=round(total_gib * GIB), **changes)


def ids(
    profile: Profile, *nodes: NodeFacts, available_gib: float | None = None
) -> list[tuple[str, Severity]]:
    measured = {} if available_gib is None else {nodes[0].id: round(available_gib * GIB)}
    found = memory_verdicts(profile, nodes, measured)
    return [(verdict.id, verdict.severity) for verdict in found]


@pytest.mark.parametrize(
    ("sets", "gib"),
    [
        ((), 6.19),
        ((BF16_DRAFT,), 19.45),
        ((BF16_DRAFT, "env.VLLM_KV_CACHE_LAYOUT=BLNHC"), 5.67),
        ((BF16_DRAFT, "engine.args.block-size=32", "memory.kv.draft_block=16"), 6.22),
        (("engine.args.kv-cache-dtype=auto",), 12.39),
        (("engine.args.speculative-config=null",), 5.59),
        (("engine.args.kv-cache-dtype=nvfp4", "engine.args.speculative-config=null"), 3.15),
    ],
)
def test_what_a_request_of_a_million_tokens_takes(sets: tuple[str, ...], gib: float) -> None:
    need = kv_need(profile_of(*sets))
    assert need is not None
    assert round(need.bytes / GIB, 2) == gib


def test_asynchronous_scheduling_keeps_one_more_batch_in_flight() -> None:
    one, two = kv_need(profile_of()), kv_need(profile_of("engine.args.async-scheduling=null"))
    assert one is not None
    assert two is not None
    assert two.bytes > one.bytes


@pytest.mark.parametrize(
    "without",
    ["max-model-len=auto", "max-model-len=null", "max-num-batched-tokens=null", "kv-cache-dtype=octave"],
)
def test_what_vllm_is_to_choose_is_not_added_up(without: str) -> None:
    profile = profile_of(f"engine.args.{without}")
    assert kv_need(profile) is None
    assert not any("KV" in line.label for line in memory_lines(profile))
    (note,) = memory_notes(profile, [node(121)])
    assert "KV cache not added up" in note


def test_the_sum_is_that_of_its_lines() -> None:
    lines = memory_lines(profile_of("memory.kv.requests=2", "memory.load_spike_gib=0"))
    assert [line.label for line in lines] == [
        "weights",
        "KV cache of 2 requests of 1,000,000 tokens (fp8)",
        "runtime",
        "reserve for the node",
    ]
    assert round(need_bytes(lines) / GIB, 2) == 88 + 2 * 6.19 + 4 + 8 + 0.01


def test_a_sum_that_fits_says_how_much_room_is_left_on_the_smallest_node() -> None:
    profile = profile_of()
    assert ids(profile, node(121.7), node(119, 2)) == []
    assert memory_notes(profile, [node(121.7), node(119, 2)]) == [
        (
            "vLLM takes 0.84 of 119.0 GiB, 100.0 GiB: 8.0 GiB of it for KV, "
            "room for 1.3 requests of 1,000,000 tokens"
        )
    ]


def test_other_ways_to_keep_the_cache_are_stated_side_by_side() -> None:
    packed = "{dtype: nvfp4, draft_dtype: bfloat16, block: 64, packed: true}"
    beside = f"memory.kv.beside=[{{dtype: bfloat16}}, {{dtype: fp8}}, {packed}, {{dtype: int4}}]"
    profile = profile_of(beside)
    # As vLLM 0.33 counts them: tests/bed/kv_cases.py asks its planner for the same.
    assert [one.tokens(10 * GIB) for one in kv_beside(profile)] == [807_317, 1_614_650, 3_100_658]
    _, first, second, third = memory_notes(profile, [node(121.7)])
    assert first.startswith("side by side, KV in bfloat16: 10.2 GiB hold 8")
    assert first.endswith(" tokens; a request of 1,000,000 takes 12.4 GiB")
    assert second.startswith("side by side, KV in fp8: 10.2 GiB hold 1,6")
    assert third.startswith("side by side, KV in nvfp4, drafter bfloat16, packed pages: 10.2 GiB hold 3,1")
    alone = "engine.args.speculative-config=null"
    assert "drafter" not in "".join(memory_notes(profile_of(beside, alone), [node(121.7)]))


def test_a_node_that_is_too_small_is_refused_with_the_arithmetic() -> None:
    found = memory_verdicts(profile_of(), [node(121.7), node(96, 2)], {})
    fit = next(verdict for verdict in found if verdict.id == "MEMORY_FIT")
    assert (fit.severity, fit.node) == (Severity.BLOCK, "spark-2")
    assert fit.evidence == (
        "88.0 weights + 6.2 KV cache of 1 request of 1,000,000 tokens (fp8) + 4.0 runtime + 4.0 load spike "
        "+ 8.0 reserve for the node = 110.2 GiB, and spark-2 has 96.0 GiB"
    )


@pytest.mark.parametrize(
    ("total_gib", "available_gib", "expected"),
    [
        (121.7, None, []),
        (110, None, ["KV_BYTES_NO_CHECK"]),
        (96, None, ["MEMORY_FIT", "KV_BYTES_NO_CHECK"]),
        (121.7, 110, ["KV_BYTES_NO_CHECK"]),
        (121.7, 96, ["MEMORY_AVAILABLE", "KV_BYTES_NO_CHECK"]),
    ],
)
def test_fewer_bytes_of_kv_are_no_remedy_where_the_rest_does_not_fit(
    total_gib: float, available_gib: float | None, expected: list[str]
) -> None:
    profile = profile_of("engine.args.kv-cache-memory-bytes=10737418240")
    measured = {} if available_gib is None else {"spark-1": round(available_gib * GIB)}
    found = memory_verdicts(profile, [node(total_gib)], measured)
    assert [verdict.id for verdict in found if verdict.id != "KV_PAGES"] == expected
    if len(expected) == 2:
        rest, kv = found[:2]
        assert "= 104.0 GiB, before any KV cache, and spark-1 has 96.0 GiB" in rest.evidence
        assert "KV" not in rest.remedy
        assert kv.remedy.startswith("once the rest fits, give kv-cache-memory-bytes fewer bytes")


def test_memory_that_something_else_holds_is_refused() -> None:
    assert ids(profile_of(), node(121.7), available_gib=118) == []
    assert ids(profile_of(), node(121.7), available_gib=100) == [("MEMORY_AVAILABLE", Severity.BLOCK)]
    # Ranks of a local set share one machine, so what each could have says nothing.
    assert ids(profile_of(), node(121.7, local=True), available_gib=100) == []


def test_a_bf16_drafter_beside_fp8_is_refused_where_it_does_not_fit_and_warned_of_where_it_does() -> None:
    assert ids(profile_of(BF16_DRAFT), node(125)) == [
        ("KV_FIT", Severity.BLOCK),
        ("KV_PAGES", Severity.WARN),
    ]
    pages = memory_verdicts(profile_of(BF16_DRAFT), [node(200)], {})
    assert [verdict.id for verdict in pages] == ["KV_PAGES"]
    assert "19.4 GiB for 5.6 GiB of content: pages of 10,240, 20,480, 32,768 bytes" in pages[0].evidence
    for way_out in ("no kv_cache_dtype", "VLLM_KV_CACHE_LAYOUT: BLNHC", "a mod"):
        assert way_out in pages[0].remedy
    assert ids(profile_of(BF16_DRAFT, "env.VLLM_KV_CACHE_LAYOUT=BLNHC"), node(121.7)) == []


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("gpu-memory-utilization=0.94", ["MEMORY_RESERVE"]),
        ("gpu-memory-utilization=0.78", ["KV_FIT"]),
        ("gpu-memory-utilization=null", []),
        ("kv-cache-memory-bytes=10G", []),
    ],
)
def test_the_share_of_vllm_holds_what_it_must_and_leaves_the_reserve(
    setting: str, expected: list[str]
) -> None:
    found = memory_verdicts(profile_of(f"engine.args.{setting}"), [node(121.7)], {})
    assert [verdict.id for verdict in found] == expected
    assert all("GiB" in verdict.evidence and verdict.remedy for verdict in found)


def test_a_profile_that_says_nothing_of_its_cache_is_judged_by_its_sum_alone() -> None:
    bare = resolve(parse_source("schema: sparkd/v1\nname: p\nmodel: {path: x}\n", "p.yaml")).profile
    assert [line.label for line in memory_lines(bare)] == ["runtime", "reserve for the node"]
    assert memory_notes(bare, [node(121)]) == []
    assert ids(bare, node(121)) == []

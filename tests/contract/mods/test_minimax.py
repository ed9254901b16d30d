"""MiniMax-M3 with a width for every expert: the quantisation, the loader and the norm, on real classes."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.contract.mods.conftest import ALL, PYTHON, ROOT, Inside

pytestmark = [pytest.mark.mods, pytest.mark.timeout(600)]

newest = pytest.mark.parametrize("inside", ALL[-1:], indirect=True)
"""For what does not depend on the version."""
LAYER = "model.language_model.layers.2"


def test_every_width_is_dequantised_bit_by_bit(inside: Inside) -> None:
    found = inside.call("minimax.dequantisation")
    assert len(found) == 12
    assert all(found.values()), found


@pytest.mark.parametrize(("vision", "fused"), [(True, True), (False, False)])
def test_every_name_finds_its_place_and_every_place_its_tensor(
    inside: Inside, vision: bool, fused: bool
) -> None:
    assert inside.call("minimax.coverage", vision=vision, fused=fused) == []


@pytest.mark.parametrize(("size", "expert_parallel"), [(1, False), (2, False), (2, True)])
def test_two_layers_answer_as_the_same_in_dense_torch(
    inside: Inside, size: int, expert_parallel: bool
) -> None:
    found = inside.call("minimax.against_dense", size=size, expert_parallel=expert_parallel)
    assert found["largest"] > 1
    assert found["off"] < found["largest"] / 100, found


DEFECTS = {
    "no lm_head": ({"drop": "lm_head"}, r"not in the checkpoint: language_model\.lm_head\.weight"),
    "a part of q": (
        {"drop": "layers.2.self_attn.q_proj.scales"},
        r"incomplete: language_model\.model\.layers\.2\.self_attn\.q_proj\.scales\n",
    ),
    "no k": (
        {"drop": "layers.2.self_attn.k_proj"},
        r"not in the checkpoint: language_model\.model\.layers\.2\.self_attn\.qkv_proj\.weight \(k\)",
    ),
    "no indexer": ({"drop": "layers.2.self_attn.indexer.k_proj"}, r"qkv_proj\.weight \(index_k\)"),
    "an expert": (
        {"drop": "layers.2.mlp.experts.5.down_proj.qweight"},
        r"not in the checkpoint: .*layers\.2\.block_sparse_moe.*w2_qweight \(w2 of expert 5\)",
    ),
    "no tower": (
        {"drop": "vision_tower.vision_model.pre_layrnorm.bias"},
        r"vision_model\.pre_layrnorm\.bias",
    ),
    "an unknown name": (
        {"rename": f"{LAYER}.mlp.gate.weight={LAYER}.mlp.router.weight"},
        rf"not in the model: {LAYER}\.mlp\.router\.weight",
    ),
    "an unknown stem": (
        {"rename": "model.language_model.norm=model.decoder.norm"},
        r"not in the model: model\.decoder\.norm\.weight",
    ),
    "zero points": (
        {"change": f"{LAYER}.mlp.experts.3.up_proj.qzeros"},
        rf"not served: {LAYER}\.mlp\.experts\.3\.up_proj\.qzeros \(its zero points",
    ),
    "inputs out of order": (
        {"change": f"{LAYER}.self_attn.o_proj.g_idx"},
        rf"not served: {LAYER}\.self_attn\.o_proj\.g_idx \(its inputs are not in order\)",
    ),
    "no shared expert in config.json": (
        {"text": {"n_shared_experts": None}},
        r"n_shared_experts is None, not 1: the shared expert would be left out",
    ),
    "widths of gate and up": (
        {"bits": {f"{LAYER}.mlp.experts.3.up_proj": 2}},
        r"layers\.2\.block_sparse_moe\.experts\.3 has 8, 2 and 2 bits",
    ),
}


@newest
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_an_error_that_names_it(inside: Inside, defect: str) -> None:
    arguments, text = DEFECTS[defect]
    with pytest.raises(AssertionError, match=text):
        inside.call("minimax.coverage", vision=True, **arguments)


@newest
def test_a_rank_that_is_given_its_own_experts_only_is_complete(inside: Inside) -> None:
    # As vLLM's filter of expert weights reads them.
    assert inside.call("minimax.own_experts") == []


@newest
def test_the_norm_is_torch_s_where_flashinfer_fails_and_its_own_where_it_works(inside: Inside) -> None:
    assert inside.call("minimax.norm") == {"absent": False, "wrong": False, "right": True}


def test_the_kernels_agree_with_plain_torch_in_triton_s_interpreter(tmp_path: Path) -> None:
    done = subprocess.run(
        [PYTHON, Path(__file__).parent / "interpret_kernels.py"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "agents"), "TRITON_INTERPRET": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == 10
    assert all(one["off"] < 0.02 for one in found), found


@newest
def test_the_method_claims_its_checkpoints_and_no_others(inside: Inside) -> None:
    assert inside.call("minimax.claims") == {
        "mixed": "autoround_mixed",
        "four bits": None,
        "another model": None,
        "another method": None,
    }

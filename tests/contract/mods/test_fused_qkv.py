"""MiMo's fused QKV on real classes of each version: right rows on every rank, nothing silently left out."""

import pytest

from tests.contract.mods.conftest import Inside

pytestmark = [pytest.mark.mods, pytest.mark.timeout(600)]


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_every_rank_holds_its_rows_and_their_scales(inside: Inside, size: int) -> None:
    assert inside.call("fused_qkv.matrix", size=size) == []


def test_modelopt_s_own_order_is_plain(inside: Inside) -> None:
    assert inside.call("fused_qkv.whole") == []


@pytest.mark.parametrize("mlp", ["weight_scale", "weight_scale_inv"])
def test_scales_of_other_layers_are_found_under_either_name(inside: Inside, mlp: str) -> None:
    assert inside.call("fused_qkv.whole", mlp=mlp) == []


@pytest.mark.parametrize("kind", ["weight", "weight_scale_inv"])
@pytest.mark.parametrize("layer", ["self_attn.qkv_proj", "mlp.down_proj"])
def test_a_half_that_never_comes_fails_the_load(inside: Inside, layer: str, kind: str) -> None:
    dropped = f"model.layers.1.{layer}.{kind}"
    missing = dropped.replace("_inv", "")
    with pytest.raises(AssertionError, match=f"left unloaded: {missing}"):
        inside.call("fused_qkv.whole", mlp="weight_scale_inv", drop=dropped)


def test_upstream_alone_refuses_or_keeps_uninitialised_memory(inside: Inside) -> None:
    silent = inside.call("fused_qkv.upstream_alone", scale_name="weight_scale")
    assert "model.layers.0.self_attn.qkv_proj.weight unloaded" in silent
    (refused,) = inside.call("fused_qkv.upstream_alone", scale_name="weight_scale_inv")
    assert refused.startswith(("KeyError", "ValueError", "RuntimeError")), refused


def test_an_unheard_of_order_is_refused(inside: Inside) -> None:
    with pytest.raises(AssertionError, match="the fused QKV order is `plain` or `interleaved`, not 'sorted'"):
        inside.call("fused_qkv.whole", order="sorted")


def test_scales_of_a_layer_that_was_built_without_are_refused(inside: Inside) -> None:
    with pytest.raises(AssertionError, match="is an MXFP8 scale, but this vLLM built the layer without one"):
        inside.call("fused_qkv.not_quantised")

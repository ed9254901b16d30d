"""The drafter and the smaller mods, on real classes of each version."""

import json

import pytest

from tests.contract.mods.conftest import Inside

pytestmark = [pytest.mark.mods, pytest.mark.timeout(600)]


@pytest.mark.parametrize("kind", ["mxfp8", "bf16", "fp8"])
def test_the_drafter_holds_its_rows_in_every_precision(inside: Inside, kind: str) -> None:
    assert inside.call("drafter.matrix", kind=kind, sizes=[1, 2, 4, 8, 16]) == []


def test_the_drafter_s_quantisation_is_found_behind_the_omni_prefix(inside: Inside) -> None:
    assert inside.call("drafter.matrix", kind="mxfp8-omni", sizes=[2]) == []


def test_a_configuration_without_auto_map_is_read_and_travels(inside: Inside) -> None:
    found = inside.call("small.configuration")
    assert found["class"] == "sparkd_mods._mimo_config_class.MiMoV2Config"
    assert all(found["kept"].values()), found
    assert found["quantization"]
    assert found["pickled"]


def test_a_checkpoint_s_own_class_is_used_where_it_may_run(inside: Inside) -> None:
    assert inside.call("small.own_configuration") == ["OwnConfig", "MiMoV2Config"]


def test_mixed_precision_knows_mxfp8_and_leaves_the_rest(inside: Inside) -> None:
    assert inside.call("small.mxfp8_layers") == {
        "mx": "torch.float8_e4m3fn torch.uint8",
        "fp8": "torch.float8_e4m3fn torch.float32",
        "out": "torch.bfloat16 None",
        "else": "torch.bfloat16 None",
    }


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_vision_merger_has_its_biases(inside: Inside, size: int) -> None:
    found = inside.call("small.merger", size=size)
    assert found["names"] == [["ln_q.bias", "mlp.0.bias", "mlp.2.bias"]] * size
    assert found["zero"] == [True] * size
    assert found["cut"] == [True] * size


def test_fused_layers_of_the_omni_wrapper_are_known(inside: Inside) -> None:
    found = inside.call("small.packed")
    assert found["mapping"] == {"qkv_proj": ["qkv_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
    assert found["excluded"] == [False, True]
    assert found["found"] == "FP8"


def test_experts_are_repacked_one_at_a_time_with_the_same_bits(inside: Inside) -> None:
    for one in inside.call("marlin.compare"):
        assert all(one["same"]), one
        assert one["alive"] <= 1, one
    for name, (upstream, ours) in inside.call("marlin.factors").items():
        assert upstream == ours, name
    assert inside.call("marlin.users") == {"oracle": True}
    replaced = inside.call("marlin.is_changed")
    assert replaced["_nvfp4_compute_scale_factor"]
    # From 0.32 on upstream writes each expert into its place by itself.
    assert replaced["prepare_nvfp4_moe_layer_for_marlin"] == (inside.version == "0.24.0")


def test_a_drafter_in_bf16_costs_an_fp8_model_no_pages(inside: Inside) -> None:
    if inside.version == "0.24.0":
        pytest.skip("0.24 keeps the model's KV in bf16 too, and has no DFlash for it")
    # At a block of 16 no smaller one is possible: the plan says so.
    assert inside.call("small.drafter_pages", block=16)["blocks"] == [16, 16, 16]
    found = inside.call("small.drafter_pages", block=32)
    assert found["blocks"] == [32, 32, 16]
    assert 19 < found["gib without"] < 20
    assert 6 < found["gib"] < 6.5
    found = inside.call("small.drafter_pages", block=64, packed=True)
    assert found["blocks"] == [64, 64, 16]
    assert 9 < found["gib without"] < 20
    assert 3.4 < found["gib"] < 3.6


def test_every_mod_told_what_became_of_it(inside: Inside) -> None:
    inside.call("small.packed")
    told = {(line["mod"], line["state"]) for line in inside.lines()}
    for mod in ("mimo-config", "mimo-packed-modules", "mimo-vision-merger"):
        assert (mod, "applied") in told, json.dumps(sorted(told))
    assert ("mimo-mxfp8-mixed", "pending" if inside.version == "0.24.0" else "not needed") in told

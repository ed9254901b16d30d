"""What a MiniMax-M3 checkpoint is checked for without loading it: config.json, names, widths."""

import json
from pathlib import Path
from typing import Any

import pytest

from sparkd.cli import main
from sparkd_mods._framework import checkpoint
from sparkd_mods._framework.checkpoint import Checkpoint
from sparkd_mods.autoround_mixed import widths
from sparkd_mods.minimax_m3_loader import config_table, files
from sparkd_mods.minimax_m3_loader.names import Dequantise, Halve, Pass, Skip, action, place

TEXT = "model.language_model."
LAYER = f"{TEXT}layers.1"
GIVEN = {"architectures": [config_table.VISION], "text_config": {"hidden_act": "swigluoai"}}


def test_each_kind_of_name_has_its_action() -> None:
    def of(name: str) -> Any:
        return action(name, vision=True)

    ours = "language_model.model.layers.1"
    assert of("model.vision_tower.x") == Skip("of the other copy of the vision tower")
    assert of("vision_tower.vision_model.x") == Pass("vision_tower.vision_model.x")
    assert isinstance(action("vision_tower.x", vision=False), Skip)
    assert isinstance(of("model.language_model.mtp.layers.0.x"), Skip)
    assert action("model.language_model.lm_head.weight", vision=False) == Pass("lm_head.weight")
    assert of("lm_head.weight") == Pass("language_model.lm_head.weight")
    assert of(f"{LAYER}.self_attn.v_proj.g_idx") == Dequantise(f"{ours}.self_attn.v_proj", "g_idx")
    assert of(f"{LAYER}.self_attn.indexer.k_norm.weight") == Pass(f"{ours}.self_attn.index_k_norm.weight")
    expert = f"{ours}.block_sparse_moe.experts.7.w3.scales"
    assert of(f"{LAYER}.mlp.experts.7.up_proj.scales") == Pass(expert)
    assert of(f"{LAYER}.mlp.gate.weight") == Pass(f"{ours}.block_sparse_moe.gate.weight")
    bias = f"{ours}.block_sparse_moe.e_score_correction_bias"
    assert of(f"{LAYER}.mlp.e_score_correction_bias") == of(f"{LAYER}.mlp.gate.e_score_correction_bias")
    assert of(f"{LAYER}.mlp.e_score_correction_bias") == Pass(bias)
    shared = f"{ours}.block_sparse_moe.shared_experts"
    assert of(f"{LAYER}.mlp.shared_experts.gate_up_proj.qzeros") == Halve(
        f"{shared}.gate_proj.qzeros", f"{shared}.up_proj.qzeros", "qzeros"
    )
    assert of(f"{LAYER}.mlp.down_proj.qweight") == Pass(f"{ours}.mlp.down_proj.qweight")
    assert of("model.decoder.norm.weight") is None
    assert place(expert).parameter == f"{ours}.block_sparse_moe.experts.routed_experts.w13_scales"
    assert place("multi_modal_projector.linear_1.bias").parameter.startswith("vision_tower.multi_modal")


def test_what_config_json_has_wrong_is_told_at_both_levels_and_repaired_by_the_least() -> None:
    config = {
        "architectures": [config_table.VISION],
        "hidden_act": "silu",
        "text_config": {
            "hidden_act": "silu",
            "n_shared_experts": None,
            "rope_parameters": {"rope_theta": 5_000_000, "partial_rotary_factor": 0.5},
        },
    }
    checked = config_table.check(config)
    assert checked.overrides == {"text_config": {"hidden_act": "swigluoai", "n_shared_experts": 1}}
    assert [(one.level, one.key) for one in checked.wrong] == [
        ("text_config", "hidden_act"),
        ("text_config", "n_shared_experts"),
        ("top level", "hidden_act"),
    ]
    assert ("text_config", "swiglu_limit") in checked.missing
    assert ("text_config", "rope_theta") not in checked.missing
    assert config_table.lacking(checked.overrides, GIVEN) == {"text_config.n_shared_experts": 1}
    found = list(files.verify(Checkpoint(config, {}), GIVEN))
    blocks = [one.text for one in found if one.severity == "block"]
    assert any("the shared expert would be left out without a message" in text for text in blocks)
    assert "to repair it: --set 'engine.args.hf-overrides.text_config.n_shared_experts=1'" in blocks
    assert not any("hidden_act" in text for text in blocks), "the profile repairs that one"


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"sym": False}, "sym is False"),
        ({"packing_format": "auto_round:auto_awq"}, "packing_format"),
        ({"group_size": 100}, "not a multiple of 32"),
        ({"extra_config": {"a.b": {"bits": 5}}}, "a.b has 5 bits"),
        ({"extra_config": {"a.b": {"bits": 4, "group_size": 64}}}, "a.b has a group_size of its own"),
    ],
)
def test_a_quantisation_that_cannot_be_served_is_refused_by_name(changed: dict[str, Any], text: str) -> None:
    good = {"bits": 16, "sym": True, "packing_format": "auto_round:auto_gptq", "group_size": 128}
    extra = {f"{LAYER}.mlp.experts.7.gate_proj": {"bits": 3}, f"{LAYER}.mlp.gate": {"bits": 16}}
    assert widths.read(good | {"extra_config": extra}) == {"layers.1.block_sparse_moe.experts.7.w1": 3}
    with pytest.raises(widths.WidthsError, match=text):
        widths.read(good | changed)


def test_parts_of_one_layer_must_have_one_width() -> None:
    bits = {"layers.1.mlp.gate_proj": 4, "layers.1.mlp.up_proj": 8, "layers.2.mlp.gate_up_proj": 4}
    assert widths.of_linear(bits, "language_model.model.layers.2.mlp.gate_up_proj") == 4
    assert widths.of_linear(bits, "model.layers.3.mlp.gate_up_proj") == 16
    with pytest.raises(widths.WidthsError, match="different widths"):
        widths.of_linear(bits, "model.layers.1.mlp.gate_up_proj")


def _checkpoint(folder: Path, *, without: str = "") -> None:
    """One dense layer, in files without data of any use."""
    text = {"num_hidden_layers": 1, "moe_layer_freq": [0], "hidden_act": "silu"}
    text |= {"sparse_attention_config": {"sparse_attention_freq": [0]}}
    modules = [f"self_attn.{name}_proj" for name in "qkvo"] + [
        f"mlp.{x}_proj" for x in ("gate", "up", "down")
    ]
    bits = {f"{TEXT}layers.0.{name}": {"bits": 4} for name in modules}
    quantised = {"bits": 16, "sym": True, "packing_format": "auto_round:auto_gptq", "group_size": 128}
    config = {"architectures": [config_table.VISION], "text_config": text}
    config |= {"quantization_config": quantised | {"extra_config": bits}}
    (folder / "config.json").write_text(json.dumps(config))
    names = [f"{name}.{part}" for name in bits for part in ("qweight", "qzeros", "scales")]
    plain = ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm")
    names += [f"{TEXT}layers.0.{name}.weight" for name in plain]
    names += [f"{TEXT}embed_tokens.weight", f"{TEXT}norm.weight", "lm_head.weight", "vision_tower.x.weight"]
    kept = [name for name in names if name != without]
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for name in kept:
        columns = 1 if name.endswith("qzeros") else 8
        entries[name] = {"dtype": "I32", "shape": [1, columns], "data_offsets": [0, 4]}
    header = json.dumps(entries).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0\0\0")


def test_verify_says_what_is_missing_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _checkpoint(tmp_path)
    assert main(["models", "verify", str(tmp_path), "--profile", "minimax-m3"]) == 0
    assert "fits minimax-m3" in capsys.readouterr().out
    _checkpoint(tmp_path, without="lm_head.weight")
    assert main(["models", "verify", str(tmp_path), "--profile", "minimax-m3", "-o", "json"]) == 1
    told = json.loads(capsys.readouterr().out)
    blocks = [one["text"] for one in told["findings"] if one["severity"] == "block"]
    assert blocks == ["not in the checkpoint: language_model.lm_head.weight"]


def test_a_file_that_was_cut_off_and_one_that_is_not_there_are_named(tmp_path: Path) -> None:
    _checkpoint(tmp_path)
    shard = tmp_path / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-2])
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    _, findings = checkpoint.read(tmp_path)
    texts = [one.text for one in findings]
    assert texts[0] == "files of the index that are not there: model-2.safetensors"
    assert texts[1].startswith("model.safetensors: it ends after ")

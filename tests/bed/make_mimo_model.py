"""Make a tiny MiMo: `.venv-vllm/bin/python tests/bed/make_mimo_model.py [DIR]` (default `.models/mimo`).

Two dense layers of MiMo-V2's text model with random weights, as ModelOpt exports the large one: fused QKV in
MXFP8, plain order, and no auto_map. K and V have one width, because vLLM has no CPU kernel for two; so have
both layers full attention. Everything else is as in make_tiny_model.py, by which it also speaks.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from make_tiny_model import HIDDEN, VOCABULARY, make_tokenizer, successors
from safetensors.torch import save_file

COMPLETE = "sparkd-mimo-v2"
LAYERS, HEADS, KV_HEADS, HEAD_DIM, INNER = 2, 8, 4, 64, 512
QKV = "model.layers.{}.self_attn.qkv_proj"

CONFIG = {
    "architectures": ["MiMoV2ForCausalLM"],
    "model_type": "mimo_v2",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "hybrid_layer_pattern": [0] * LAYERS,
    "moe_layer_freq": [0] * LAYERS,
    "n_routed_experts": 8,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "v_head_dim": HEAD_DIM,
    "attention_bias": False,
    "attention_value_scale": 0.612,
    "hidden_act": "silu",
    "layernorm_epsilon": 1e-5,
    "rope_theta": 10_000_000,
    # 0.334 in the large one; with 64 wide heads vLLM's CPU kernel would write beyond the odd half of that.
    "partial_rotary_factor": 0.5,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "quantization_config": {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "kv_cache_quant_algo": None,
        "ignore": [],
        "quantized_layers": {QKV.format(layer): {"quant_algo": "MXFP8"} for layer in range(LAYERS)},
    },
}


def tensors(output: torch.Tensor, embedding: torch.Tensor) -> dict[str, torch.Tensor]:
    dice = torch.Generator().manual_seed(21)

    def weight(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=dice) / shape[-1] ** 0.5).to(torch.bfloat16)

    made = {
        "model.embed_tokens.weight": embedding.to(torch.bfloat16),
        "model.norm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16),
        "lm_head.weight": output.to(torch.bfloat16),
    }
    rows = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            made[f"{prefix}.{name}.weight"] = torch.ones(HIDDEN, dtype=torch.bfloat16)
        made[f"{prefix}.mlp.gate_proj.weight"] = weight(INNER, HIDDEN)
        made[f"{prefix}.mlp.up_proj.weight"] = weight(INNER, HIDDEN)
        made[f"{prefix}.mlp.down_proj.weight"] = weight(HIDDEN, INNER)
        made[f"{prefix}.self_attn.o_proj.weight"] = weight(HIDDEN, HEADS * HEAD_DIM)
        qkv = torch.randn((rows, HIDDEN), generator=dice).to(torch.float8_e4m3fn)
        made[f"{QKV.format(layer)}.weight"] = qkv
        # Exponents of two, off by 127: about 1/16, the root of the hidden size. Under the name that vLLM
        # takes without a word and without the weight that belongs to it.
        scale = torch.randint(122, 125, (rows, HIDDEN // 32), dtype=torch.uint8, generator=dice)
        made[f"{QKV.format(layer)}.weight_scale"] = scale
    return made


def main() -> None:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ".models/mimo")
    if (target / COMPLETE).exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    dice = torch.Generator().manual_seed(20)
    tokenizer = make_tokenizer()
    embedding = torch.randn(VOCABULARY, HIDDEN, generator=dice)
    output = torch.zeros_like(embedding)
    output.index_add_(0, successors(tokenizer, dice), embedding)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as folder:
        building = Path(folder) / "model"
        tokenizer.save_pretrained(building)
        weights = building / "model.safetensors"
        save_file(tensors(output / HIDDEN**0.5, embedding), weights, metadata={"format": "pt"})
        weights.chmod(0o644)
        config = CONFIG | {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": tokenizer.pad_token_id}
        (building / "config.json").write_text(json.dumps(config, indent=2))
        (building / COMPLETE).touch()
        if target.exists():
            shutil.rmtree(target)
        building.rename(target)


if __name__ == "__main__":
    main()

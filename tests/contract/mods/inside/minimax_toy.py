"""A MiniMax-M3 of a few layers, and its AutoRound checkpoint as files have it, vision in both namings."""

from typing import Any

import numpy as np
import torch

HIDDEN = 256
INNER = 256
DENSE = 512
HEADS, KV_HEADS, HEAD_DIM = 8, 4, 128
EXPERTS, TOP_K = 8, 4
VOCABULARY = 256
GROUP = 128
VISION_HIDDEN = 64
WIDTHS = (2, 3, 4, 8)
TEXT = "model.language_model."
ALPHA, BETA, LIMIT = 1.702, 1.0, 7.0


def config(layers: int, dense: int, bits: dict[str, int], **text: Any) -> dict[str, Any]:
    """config.json; the first `dense` layers have neither experts nor an indexer."""
    sparse = [0] * dense + [1] * (layers - dense)
    return {
        "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
        "model_type": "minimax_m3_vl",
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "projector_hidden_size": HIDDEN,
        "image_token_index": 3,
        "text_config": {
            "model_type": "minimax_m3_text",
            "architectures": ["MiniMaxM3SparseForCausalLM"],
            "vocab_size": VOCABULARY,
            "hidden_size": HIDDEN,
            "intermediate_size": INNER,
            "dense_intermediate_size": DENSE,
            "shared_intermediate_size": INNER,
            "num_hidden_layers": layers,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_DIM,
            "num_local_experts": EXPERTS,
            "num_experts_per_tok": TOP_K,
            "max_position_embeddings": 4096,
            "moe_layer_freq": sparse,
            "hidden_act": "swigluoai",
            "torch_dtype": "bfloat16",
            "sparse_attention_config": {
                "use_sparse_attention": True,
                "sparse_index_dim": HEAD_DIM,
                "sparse_num_index_heads": KV_HEADS,
                "sparse_topk_blocks": 4,
                "sparse_block_size": 128,
                "sparse_disable_index_value": sparse,
                "sparse_score_type": "max",
                "sparse_init_block": 0,
                "sparse_local_block": 1,
                "sparse_attention_freq": sparse,
            },
            **text,
        },
        "vision_config": {
            "hidden_size": VISION_HIDDEN,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 2 * VISION_HIDDEN,
            "num_channels": 3,
            "patch_size": 14,
            "image_size": 56,
            "layer_norm_eps": 1e-5,
            "hidden_act": "gelu",
            "img_token_compression_config": {"spatial_merge_size": 2, "temporal_patch_size": 2},
        },
        "quantization_config": {
            "quant_method": "auto-round",
            "bits": 16,
            "group_size": GROUP,
            "sym": True,
            "packing_format": "auto_round:auto_gptq",
            "extra_config": {name: {"bits": width} for name, width in bits.items()},
        },
    }


def pack(values: np.ndarray, bits: int) -> torch.Tensor:
    """Values [rows, columns] as words, bit by bit: written apart from the mod's own reverse."""
    rows, columns = values.shape
    each = (values[:, None, :] >> np.arange(bits)[None, :, None]) & 1
    stream = each.reshape(rows * bits // 32, 32, columns).astype(np.uint64)
    words = (stream << np.arange(32, dtype=np.uint64)[None, :, None]).sum(axis=1)
    return torch.from_numpy(words.astype(np.uint32).view(np.int32))


class Checkpoint:
    """Random tensors under the files' names, the width of each packed module, and each as a dense matrix."""

    def __init__(self, layers: int, dense: int, *, fused: bool = False, seed: int = 1) -> None:
        """`fused`: the shared experts' gate and up lie in one tensor."""
        self._random = np.random.default_rng(seed)
        self.tensors: dict[str, torch.Tensor] = {}
        self.bits: dict[str, int] = {}
        self.dense: dict[str, torch.Tensor] = {}
        for name in ("embed_tokens", "lm_head"):
            self._plain(f"{TEXT}{name}.weight", VOCABULARY, HIDDEN)
        self._plain(f"{TEXT}norm.weight", HIDDEN)
        for layer in range(layers):
            self._layer(f"{TEXT}layers.{layer}", is_dense=layer < dense, fused=fused)
        self._vision()

    def _plain(self, name: str, *shape: int, dtype: torch.dtype = torch.bfloat16) -> None:
        made = torch.from_numpy(self._random.standard_normal(shape)).to(dtype) / shape[-1] ** 0.5
        self.tensors[name] = made
        self.dense[name] = made

    def _packed(self, name: str, inputs: int, outputs: int, bits: int, *, symmetric: bool = True) -> None:
        values = self._random.integers(0, 1 << bits, (inputs, outputs))
        zeros = np.full((inputs // GROUP, outputs), (1 << (bits - 1)) - 1)
        if not symmetric:
            zeros = self._random.integers(0, (1 << bits) - 1, zeros.shape)
        scales = torch.from_numpy(self._random.random(zeros.shape) + 0.5) / (inputs**0.5 * (1 << bits))
        self.tensors |= {
            f"{name}.qweight": pack(values, bits),
            f"{name}.qzeros": pack(zeros.T, bits).T.contiguous(),
            f"{name}.scales": scales.half(),
            f"{name}.g_idx": torch.arange(inputs, dtype=torch.int32) // GROUP,
        }
        points = torch.from_numpy(zeros + 1).repeat_interleave(GROUP, 0)
        spread = scales.half().float().repeat_interleave(GROUP, 0)
        self.dense[name] = ((torch.from_numpy(values) - points).float() * spread).bfloat16().T
        self.bits[name] = bits

    def _layer(self, prefix: str, *, is_dense: bool, fused: bool) -> None:
        for name in ("input_layernorm", "post_attention_layernorm"):
            self._plain(f"{prefix}.{name}.weight", HIDDEN)
        attention = f"{prefix}.self_attn"
        for name, heads, bits in (("q_proj", HEADS, 4), ("k_proj", KV_HEADS, 8), ("v_proj", KV_HEADS, 3)):
            # 3 bits, and zero points that are not the middle, are dequantised like all others.
            self._packed(f"{attention}.{name}", HIDDEN, heads * HEAD_DIM, bits, symmetric=bits != 4)
        self._packed(f"{attention}.o_proj", HEADS * HEAD_DIM, HIDDEN, 8)
        for name in ("q_norm", "k_norm"):
            self._plain(f"{attention}.{name}.weight", HEAD_DIM)
        if is_dense:
            self._mlp(f"{prefix}.mlp", DENSE, 4)
            return
        for name, heads in (("q", KV_HEADS), ("k", 1)):
            self._plain(f"{attention}.indexer.{name}_proj.weight", heads * HEAD_DIM, HIDDEN)
            self._plain(f"{attention}.indexer.{name}_norm.weight", HEAD_DIM)
        self._plain(f"{prefix}.mlp.gate.weight", EXPERTS, HIDDEN, dtype=torch.float32)
        self._plain(f"{prefix}.mlp.gate.e_score_correction_bias", EXPERTS, dtype=torch.float32)
        shared = f"{prefix}.mlp.shared_experts"
        if fused:
            self._packed(f"{shared}.gate_up_proj", HIDDEN, 2 * INNER, 8)
            self._packed(f"{shared}.down_proj", INNER, HIDDEN, 8)
        else:
            self._mlp(shared, INNER, 8)
        for expert in range(EXPERTS):
            self._mlp(f"{prefix}.mlp.experts.{expert}", INNER, WIDTHS[expert % 4], WIDTHS[(expert + 1) % 4])

    def _mlp(self, prefix: str, inner: int, bits: int, down: int | None = None) -> None:
        for name in ("gate_proj", "up_proj"):
            self._packed(f"{prefix}.{name}", HIDDEN, inner, bits)
        self._packed(f"{prefix}.down_proj", inner, HIDDEN, down or bits)

    def _vision(self) -> None:
        tower = "vision_tower.vision_model"
        layer = f"{tower}.encoder.layers.0"
        wide = 2 * VISION_HIDDEN
        self._plain(f"{tower}.embeddings.patch_embedding.weight", VISION_HIDDEN, 3, 2, 14, 14)
        linears = [
            (f"{layer}.self_attn.{one}_proj", VISION_HIDDEN, VISION_HIDDEN) for one in ("q", "k", "v", "out")
        ]
        linears += [(f"{layer}.mlp.fc1", wide, VISION_HIDDEN), (f"{layer}.mlp.fc2", VISION_HIDDEN, wide)]
        linears += [("multi_modal_projector.linear_1", HIDDEN, VISION_HIDDEN)]
        linears += [("multi_modal_projector.linear_2", HIDDEN, HIDDEN)]
        linears += [
            ("patch_merge_mlp.linear_1", HIDDEN, 4 * HIDDEN),
            ("patch_merge_mlp.linear_2", HIDDEN, HIDDEN),
        ]
        for name, outputs, inputs in linears:
            self._plain(f"{name}.weight", outputs, inputs)
            self._plain(f"{name}.bias", outputs)
        for name in (f"{tower}.pre_layrnorm", f"{layer}.layer_norm1", f"{layer}.layer_norm2"):
            self._plain(f"{name}.weight", VISION_HIDDEN)
            self._plain(f"{name}.bias", VISION_HIDDEN)
        for name in [one for one in self.tensors if not one.startswith(TEXT)]:
            self.tensors[f"model.{name}"] = self.tensors[name].clone()

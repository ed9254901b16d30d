"""A MiMo of two layers, one global and one with a sliding window, and its checkpoints."""

import contextlib
import functools
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.kernels import linear as kernels
from vllm.model_executor.kernels.linear.mxfp8.emulation import EmulationMxfp8LinearKernel
from vllm.model_executor.kernels.linear.scaled_mm.cpu import CPUFp8BlockScaledMMKernel
from vllm.platforms import PlatformEnum, current_platform

from inside.ranks import rank_of

HIDDEN = 256
INNER = 512
VOCABULARY = 512
HEADS = 16
HEAD_DIM, V_HEAD_DIM = 192, 128
KV_HEADS = (4, 8)
"""Of the global layer and of the one with a sliding window. The number of chunks is the first."""
CHUNKS = KV_HEADS[0]


def allow_quantisation_here() -> None:
    """vLLM has no MXFP8 kernel for CPUs; the emulation works anywhere."""
    registered = kernels._POSSIBLE_MXFP8_KERNELS.setdefault(PlatformEnum.CPU, [])
    if EmulationMxfp8LinearKernel not in registered:
        registered.append(EmulationMxfp8LinearKernel)
    # Of block FP8 only the loading is looked at; its kernel wants a newer CPU.
    CPUFp8BlockScaledMMKernel.is_supported = classmethod(lambda *_: (True, None))
    allowed = current_platform.supported_quantization
    if allowed and "modelopt_mixed" not in allowed:
        allowed.append("modelopt_mixed")


def config(quantized: dict[str, str], **more: Any) -> dict[str, Any]:
    """config.json as an export without auto_map has it. `quantized`: layer -> algorithm."""
    body: dict[str, Any] = {
        "architectures": ["MiMoV2ForCausalLM"],
        "model_type": "mimo_v2",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": 2,
        "hybrid_layer_pattern": [0, 1],
        "moe_layer_freq": [0, 0],
        "n_routed_experts": 8,
        "num_attention_heads": HEADS,
        "swa_num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS[0],
        "swa_num_key_value_heads": KV_HEADS[1],
        "head_dim": HEAD_DIM,
        "swa_head_dim": HEAD_DIM,
        "v_head_dim": V_HEAD_DIM,
        "swa_v_head_dim": V_HEAD_DIM,
        "sliding_window": 128,
        "sliding_window_size": 128,
        "attention_bias": False,
        "add_swa_attention_sink_bias": True,
        "attention_value_scale": 0.612,
        "hidden_act": "silu",
        "layernorm_epsilon": 1e-5,
        "rope_theta": 10_000_000,
        "swa_rope_theta": 10_000,
        "partial_rotary_factor": 0.334,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        **more,
    }
    if quantized:
        body["quantization_config"] = {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "kv_cache_quant_algo": None,
            "ignore": [],
            "quantized_layers": {name: {"quant_algo": algo} for name, algo in quantized.items()},
        }
    return body


@contextlib.contextmanager
def engine_config(body: dict[str, Any], **arguments: Any) -> Iterator[VllmConfig]:
    allow_quantisation_here()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(body))
        made = EngineArgs(
            model=folder,
            skip_tokenizer_init=True,
            enforce_eager=True,
            load_format="dummy",
            max_model_len=512,
            **arguments,
        ).create_engine_config()
        with set_current_vllm_config(made):
            yield made


def build(model_class: type[torch.nn.Module], made: VllmConfig, rank: int, size: int) -> torch.nn.Module:
    """The model as this rank has it, every parameter filled with a value that no weight has."""
    made.compilation_config.static_forward_context.clear()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with rank_of(rank, size):
            model = model_class(vllm_config=made)
    finally:
        torch.set_default_dtype(torch.float32)
    for parameter in model.parameters():
        fill(parameter.data)
    return model


def fill(data: torch.Tensor) -> None:
    data.view(torch.uint8).fill_(0x7E) if data.dtype.itemsize == 1 else data.fill_(99.0)


def untouched(model: torch.nn.Module) -> list[str]:
    """Parameters that still hold what `fill` put there."""
    found = []
    for name, parameter in weights_of(model).items():
        before = parameter.data.clone()
        fill(before)
        if torch.equal(before.flatten().view(torch.uint8), parameter.data.flatten().view(torch.uint8)):
            found.append(name)
    return found


def weights_of(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """All parameters but the scales of KV, which a checkpoint need not have."""
    return {name: one for name, one in model.named_parameters() if ".attn." not in name}


class Weights:
    """Random tensors under a checkpoint's names, the same for the same seed."""

    def __init__(self, seed: int = 1) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self.tensors: dict[str, torch.Tensor] = {}

    def bf16(self, name: str, *shape: int) -> torch.Tensor:
        made = torch.randn(shape, generator=self._generator).to(torch.bfloat16)
        self.tensors[name] = made
        return made

    def mxfp8(self, name: str, rows: int, columns: int, scale_name: str) -> tuple[torch.Tensor, torch.Tensor]:
        weight = torch.randn((rows, columns), generator=self._generator).to(torch.float8_e4m3fn)
        scale = torch.randint(112, 120, (rows, columns // 32), dtype=torch.uint8, generator=self._generator)
        self.tensors[f"{name}.weight"], self.tensors[f"{name}.{scale_name}"] = weight, scale
        return weight, scale

    def dense_layer(self, prefix: str, *, mlp: str | None = None) -> None:
        """Everything of a layer but its attention; `mlp`: the name of its MXFP8 scales."""
        for name in ("input_layernorm", "post_attention_layernorm"):
            self.bf16(f"{prefix}.{name}.weight", HIDDEN)
        for name, shape in (
            ("gate_proj", (INNER, HIDDEN)),
            ("up_proj", (INNER, HIDDEN)),
            ("down_proj", (HIDDEN, INNER)),
        ):
            if mlp is None:
                self.bf16(f"{prefix}.mlp.{name}.weight", *shape)
            else:
                self.mxfp8(f"{prefix}.mlp.{name}", *shape, mlp)


def rows(kv_heads: int) -> int:
    return HEADS * HEAD_DIM + kv_heads * (HEAD_DIM + V_HEAD_DIM)


def interleave(plain: torch.Tensor, kv_heads: int, chunks: int = CHUNKS) -> torch.Tensor:
    """Plain order to chunks, row by row: written apart from the mod's own reverse."""
    q, k, v = plain.split([HEADS * HEAD_DIM, kv_heads * HEAD_DIM, kv_heads * V_HEAD_DIM])
    parts = []
    for c in range(chunks):
        for section in (q, k, v):
            size = section.size(0) // chunks
            parts.append(section[c * size : (c + 1) * size])
    return torch.cat(parts)


@functools.cache
def expected_rows(kv_heads: int, rank: int, size: int) -> list[int]:
    """The rows of a plain projection that a rank must hold, head by head."""
    mine = range(rank * HEADS // size, (rank + 1) * HEADS // size)
    if size <= kv_heads:
        kv = list(range(rank * kv_heads // size, (rank + 1) * kv_heads // size))
    else:
        kv = [rank * kv_heads // size]
    found = [h * HEAD_DIM + i for h in mine for i in range(HEAD_DIM)]
    k_begin = HEADS * HEAD_DIM
    found += [k_begin + h * HEAD_DIM + i for h in kv for i in range(HEAD_DIM)]
    v_begin = k_begin + kv_heads * HEAD_DIM
    return found + [v_begin + h * V_HEAD_DIM + i for h in kv for i in range(V_HEAD_DIM)]

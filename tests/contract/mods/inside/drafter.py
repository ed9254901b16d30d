"""The MTP drafter: the rows of each rank, in every precision and order."""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.model_executor.models.mimo_v2_mtp import MiMoV2MTP

from inside import toy
from inside.ranks import rank_of

QKV = "model.mtp.layers.0.self_attn.qkv_proj"
KV_HEADS = toy.KV_HEADS[1]
BLOCK = 128
INNER = 2048
"""Of block FP8: 16 ranks have whole blocks each."""


def body(kind: str) -> dict[str, Any]:
    """config.json for a drafter of that precision."""
    if kind == "mxfp8":
        return toy.config({QKV: "MXFP8"})
    if kind == "mxfp8-omni":
        # As the Omni model's mapper leaves the names behind.
        return toy.config({f"language_model.{QKV}": "MXFP8"})
    made = toy.config({} if kind == "fp8" else {"model.layers.9.x": "FP8"})
    if kind == "fp8":
        made["intermediate_size"] = INNER
        made["quantization_config"] = {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
        }
    return made


def checkpoint(
    kind: str, order: str
) -> tuple[dict[str, torch.Tensor], torch.Tensor, dict[str, torch.Tensor]]:
    """Tensors as in the files; the projection in plain order as floats, and as its parameters must be."""
    weights = toy.Weights()
    weights.bf16("model.embed_tokens.weight", toy.VOCABULARY, toy.HIDDEN)
    weights.bf16("lm_head.weight", toy.VOCABULARY, toy.HIDDEN)
    prefix = "model.mtp.layers.0"
    for name in ("enorm", "hnorm", "input_layernorm", "pre_mlp_layernorm", "final_layernorm"):
        weights.bf16(f"{prefix}.{name}.weight", toy.HIDDEN)
    weights.bf16(f"{prefix}.eh_proj.weight", toy.HIDDEN, 2 * toy.HIDDEN)
    weights.bf16(f"{prefix}.self_attn.o_proj.weight", toy.HIDDEN, toy.HEADS * toy.V_HEAD_DIM)
    weights.bf16(f"{prefix}.self_attn.attention_sink_bias", toy.HEADS)
    if kind == "fp8":
        for name, shape in (
            ("gate_proj", (INNER, toy.HIDDEN)),
            ("up_proj", (INNER, toy.HIDDEN)),
            ("down_proj", (toy.HIDDEN, INNER)),
        ):
            stored = weights.bf16("x", *shape).to(torch.float8_e4m3fn)
            weights.tensors[f"{prefix}.mlp.{name}.weight"] = stored
            scales = torch.ones(shape[0] // BLOCK, shape[1] // BLOCK)
            weights.tensors[f"{prefix}.mlp.{name}.weight_scale_inv"] = scales
        del weights.tensors["x"]
    else:
        for name, shape in (("gate_proj", (toy.INNER, toy.HIDDEN)), ("up_proj", (toy.INNER, toy.HIDDEN))):
            weights.bf16(f"{prefix}.mlp.{name}.weight", *shape)
        weights.bf16(f"{prefix}.mlp.down_proj.weight", toy.HIDDEN, toy.INNER)
    rows, plain = toy.rows(KV_HEADS), toy.Weights(seed=3)
    if kind == "fp8":
        return weights.tensors, _block_fp8(weights, plain, order, rows), {}
    if kind == "bf16":
        exact = {"weight": plain.bf16("weight", rows, toy.HIDDEN)}
    else:
        weight, scale = plain.mxfp8("qkv", rows, toy.HIDDEN, "weight_scale_inv")
        exact = {"weight": weight, "weight_scale": scale}
    for name, tensor in exact.items():
        stored_name = "weight_scale_inv" if name == "weight_scale" else name
        stored = toy.interleave(tensor, KV_HEADS) if order == "interleaved" else tensor
        weights.tensors[f"{QKV}.{stored_name}"] = stored
    return weights.tensors, torch.empty(0), exact


def _block_fp8(weights: toy.Weights, plain: toy.Weights, order: str, rows: int) -> torch.Tensor:
    """Stores the projection with a scale a block; interleaved ones tile each chunk by itself."""
    values = plain.bf16("weight", rows, toy.HIDDEN).float()
    stored = toy.interleave(values, KV_HEADS) if order == "interleaved" else values
    parts = toy.CHUNKS if order == "interleaved" else 1
    quantised, scales = [], []
    for chunk in stored.chunk(parts):
        tiles = -(-chunk.size(0) // BLOCK)
        scale = torch.rand((tiles, toy.HIDDEN // BLOCK), generator=plain._generator) * 0.02 + 0.01
        wide = scale.repeat_interleave(BLOCK, 0)[: chunk.size(0)].repeat_interleave(BLOCK, 1)
        quantised.append((chunk / wide).clamp(-448, 448).to(torch.float8_e4m3fn))
        scales.append(scale)
    weights.tensors[f"{QKV}.weight"] = torch.cat([part.view(torch.uint8) for part in quantised]).view(
        torch.float8_e4m3fn
    )
    weights.tensors[f"{QKV}.weight_scale_inv"] = torch.cat(scales)
    return values


def matrix(kind: str, sizes: list[int]) -> list[str]:
    """Both orders on every rank of every size: what was not loaded, or differs, in words."""
    wrong: list[str] = []
    stored = {order: checkpoint(kind, order) for order in ("plain", "interleaved")}
    with toy.engine_config(body(kind), dtype="bfloat16") as made:
        made.speculative_config = SimpleNamespace()
        for size in sizes:
            for rank in range(size):
                model = toy.build(MiMoV2MTP, made, rank, size)
                for order, (tensors, values, exact) in stored.items():
                    made.model_config.hf_config.fused_qkv_weight_order = order
                    found = _load(model, tensors, rank, size)
                    found += _differing(model, values, exact, toy.expected_rows(KV_HEADS, rank, size))
                    wrong += [f"{kind} {order} rank {rank} of {size}: {one}" for one in found]
    return wrong


def _load(model: torch.nn.Module, tensors: dict[str, torch.Tensor], rank: int, size: int) -> list[str]:
    for parameter in model.parameters():
        toy.fill(parameter.data)
    model.__dict__.pop("_sparkd_loaded", None)
    with rank_of(rank, size):
        loaded = model.load_weights(iter(tensors.items()))
    found = [f"{name} unloaded" for name in toy.untouched(model)]
    return found + [f"{name} not told" for name in sorted(set(toy.weights_of(model)) - loaded)]


def _differing(
    model: torch.nn.Module, values: torch.Tensor, exact: dict[str, torch.Tensor], wanted: list[int]
) -> list[str]:
    """`exact`: what the parameters must hold; block FP8 is quantised anew and only comes near `values`."""
    parameters = dict(model.named_parameters())
    found = []
    for name, right in exact.items():
        held = parameters[f"{QKV}.{name}"].data
        if not torch.equal(held.view(torch.uint8), right[wanted].view(torch.uint8)):
            found.append(f"{name} differs")
    if not exact and (error := _error(parameters, values[wanted])) > 0.05:
        found.append(f"the weight is off by {error:.3f}")
    return found


def _error(parameters: dict[str, torch.Tensor], right: torch.Tensor) -> float:
    """Of the dequantised weight, in the norm of the right one. Two roundings to e4m3 give about 0.035."""
    weight = parameters[f"{QKV}.weight"].data.float()
    scale = parameters[f"{QKV}.weight_scale_inv"].data
    wide = scale.repeat_interleave(BLOCK, 0)[: weight.size(0)].repeat_interleave(BLOCK, 1)
    return float((weight * wide - right).norm() / right.norm())

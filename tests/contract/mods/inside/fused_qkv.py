"""The main model: every rank gets its rows, and nothing stays unloaded."""

from typing import Any

import torch
from vllm.model_executor.models.mimo_v2 import MiMoV2ForCausalLM

from inside import toy
from inside.ranks import rank_of

QKV = "model.layers.{}.self_attn.qkv_proj"
MLP = "model.layers.{}.mlp.{}"


def checkpoint(order: str, scale_name: str, mlp: str | None) -> tuple[dict[str, torch.Tensor], toy.Weights]:
    """The tensors as they stand in the files, and the projections in plain order."""
    weights, plain = toy.Weights(), toy.Weights(seed=2)
    weights.bf16("model.embed_tokens.weight", toy.VOCABULARY, toy.HIDDEN)
    weights.bf16("model.norm.weight", toy.HIDDEN)
    weights.bf16("lm_head.weight", toy.VOCABULARY, toy.HIDDEN)
    for layer, kv_heads in enumerate(toy.KV_HEADS):
        prefix = f"model.layers.{layer}"
        weights.dense_layer(prefix, mlp=mlp)
        weights.bf16(f"{prefix}.self_attn.o_proj.weight", toy.HIDDEN, toy.HEADS * toy.V_HEAD_DIM)
        plain.mxfp8(QKV.format(layer), toy.rows(kv_heads), toy.HIDDEN, scale_name)
        for kind in ("weight", scale_name):
            tensor = plain.tensors[f"{QKV.format(layer)}.{kind}"]
            stored = toy.interleave(tensor, kv_heads) if order == "interleaved" else tensor
            weights.tensors[f"{QKV.format(layer)}.{kind}"] = stored
    weights.bf16("model.layers.1.self_attn.attention_sink_bias", toy.HEADS)
    return weights.tensors, plain


def quantized(mlp: bool) -> dict[str, str]:
    found = {QKV.format(layer): "MXFP8" for layer in (0, 1)}
    if mlp:
        names = ("gate_proj", "up_proj", "down_proj")
        found |= {MLP.format(layer, name): "MXFP8" for layer in (0, 1) for name in names}
    return found


def load(
    order: str, scale_name: str, mlp: str | None, size: int, drop: str | None = None
) -> list[dict[str, Any]]:
    """For each rank: what was not loaded, and which projections differ from the rows it must hold."""
    tensors, plain = checkpoint(order, scale_name, mlp)
    if drop:
        del tensors[drop]
    results = []
    body = toy.config(quantized(mlp is not None), fused_qkv_weight_order=order)
    with toy.engine_config(body, dtype="bfloat16") as made:
        for rank in range(size):
            model = toy.build(MiMoV2ForCausalLM, made, rank, size)
            with rank_of(rank, size):
                loaded = model.load_weights(iter(tensors.items()))
            parameters = dict(model.named_parameters())
            wrong = []
            for layer, kv_heads in enumerate(toy.KV_HEADS):
                wanted = toy.expected_rows(kv_heads, rank, size)
                for kind, stored in (("weight", "weight"), ("weight_scale", scale_name)):
                    name = f"{QKV.format(layer)}.{kind}"
                    right = plain.tensors[f"{QKV.format(layer)}.{stored}"][wanted]
                    if not torch.equal(parameters[name].data.view(torch.uint8), right.view(torch.uint8)):
                        wrong.append(name)
            results.append({"unloaded": sorted(set(parameters) - loaded), "wrong": wrong})
    return results

"""The main model: every rank gets its rows, and nothing stays unloaded."""

import functools

import torch
from vllm.model_executor.models import mimo_v2
from vllm.model_executor.models.mimo_v2 import MiMoV2ForCausalLM

from inside import toy
from inside.ranks import rank_of

QKV = "model.layers.{}.self_attn.qkv_proj"
MLP = "model.layers.{}.mlp.{}"


@functools.cache
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


def matrix(size: int) -> list[str]:
    """Every order and scale name on every rank of `size`: what was not loaded, or differs, in words."""
    wrong: list[str] = []
    with toy.engine_config(toy.config(quantized(mlp=False)), dtype="bfloat16") as made:
        for rank in range(size):
            model = toy.build(MiMoV2ForCausalLM, made, rank, size)
            for order in ("plain", "interleaved"):
                made.model_config.hf_config.fused_qkv_weight_order = order
                for scale_name in ("weight_scale", "weight_scale_inv"):
                    tensors, plain = checkpoint(order, scale_name, None)
                    found = load(model, tensors, rank, size)
                    found += differing(model, plain, scale_name, rank, size)
                    wrong += [f"{order} {scale_name} rank {rank} of {size}: {one}" for one in found]
    return wrong


def load(model: torch.nn.Module, tensors: dict[str, torch.Tensor], rank: int, size: int) -> list[str]:
    """Load it anew; gives the parameters that were not filled."""
    for parameter in model.parameters():
        toy.fill(parameter.data)
    model.__dict__.pop("_sparkd_loaded", None)
    with rank_of(rank, size):
        loaded = model.load_weights(iter(tensors.items()))
    return [f"{name} unloaded" for name in toy.untouched(model)] + [
        f"{name} not told as loaded" for name in sorted(set(toy.weights_of(model)) - loaded)
    ]


def differing(model: torch.nn.Module, plain: toy.Weights, scale_name: str, rank: int, size: int) -> list[str]:
    """The projections whose rows are not those that this rank must hold."""
    parameters = dict(model.named_parameters())
    found = []
    for layer, kv_heads in enumerate(toy.KV_HEADS):
        wanted = toy.expected_rows(kv_heads, rank, size)
        for kind, stored in (("weight", "weight"), ("weight_scale", scale_name)):
            name = f"{QKV.format(layer)}.{kind}"
            right = plain.tensors[f"{QKV.format(layer)}.{stored}"][wanted]
            if not torch.equal(parameters[name].data.view(torch.uint8), right.view(torch.uint8)):
                found.append(f"{name} differs")
    return found


def whole(
    mlp: str | None = None, scale_name: str = "weight_scale_inv", order: str | None = None, drop: str = ""
) -> list[str]:
    """One model of two ranks, its MLP in MXFP8 too if `mlp` names its scales; `drop`: not in the files."""
    wrong: list[str] = []
    tensors, plain = checkpoint(order or "plain", scale_name, mlp)
    tensors = {name: tensor for name, tensor in tensors.items() if name != drop}
    more = {} if order is None else {"fused_qkv_weight_order": order}
    with toy.engine_config(toy.config(quantized(mlp is not None), **more), dtype="bfloat16") as made:
        for rank in (0, 1):
            model = toy.build(MiMoV2ForCausalLM, made, rank, 2)
            wrong += load(model, tensors, rank, 2) + differing(model, plain, scale_name, rank, 2)
    return wrong


def upstream_alone(scale_name: str) -> list[str]:
    """What becomes of the same checkpoint without the mod."""
    changed = (mimo_v2.MiMoV2Model, mimo_v2.MiMoV2FlashForCausalLM)
    kept = [one.load_weights for one in changed]
    try:
        for one in changed:
            one.load_weights = one.load_weights.__wrapped__
        return whole(scale_name=scale_name)
    except Exception as error:  # noqa: BLE001 - the versions refuse it each in their own way
        return [f"{type(error).__name__}: {error}"]
    finally:
        for one, function in zip(changed, kept, strict=True):
            one.load_weights = function


def not_quantised() -> None:
    """A checkpoint with MXFP8 scales for layers that its configuration does not call MXFP8."""
    tensors, _ = checkpoint("plain", "weight_scale_inv", None)
    with toy.engine_config(toy.config({"model.layers.9.x": "FP8"}), dtype="bfloat16") as made:
        load(toy.build(MiMoV2ForCausalLM, made, 0, 1), tensors, 0, 1)

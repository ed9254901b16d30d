"""MiniMax-M3 from a mixed AutoRound checkpoint on vLLM's real classes; only attention is replaced."""

import contextlib
import functools
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from inside import minimax_toy, toy
from inside.minimax_toy import ALPHA, BETA, HIDDEN, LIMIT, TEXT, TOP_K, Checkpoint
from inside.ranks import rank_of


def _model_class(vision: bool) -> Any:
    # Up to 0.24 the model takes only its absence for an answer, not that the CPU build lacks its kernels.
    sys.modules.setdefault("vllm.compilation.passes.fusion.allreduce_rms_fusion", None)
    from vllm.models.minimax_m3.nvidia import model

    return model.MiniMaxM3SparseForConditionalGeneration if vision else model.MiniMaxM3SparseForCausalLM


def _register() -> None:
    """As classes of this process: vLLM would look at them in another one, which has no torchvision."""
    from vllm.model_executor.models.registry import ModelRegistry

    for vision in (False, True):
        found = _model_class(vision)
        ModelRegistry.register_model(found.__name__, found)


def _build(made: Any, rank: int, size: int, *, vision: bool) -> Any:
    return toy.build(_model_class(vision), made, rank, size)


def dequantisation() -> dict[str, bool]:
    """Every width, symmetric or not, and in the kernels' order, against numbers packed bit by bit."""
    from sparkd_mods.autoround_mixed.experts_torch import Matrices
    from sparkd_mods.autoround_mixed.packing import dequantise

    found = {}
    for bits in minimax_toy.WIDTHS:
        for symmetric in (True, False):
            one = Checkpoint(0, 0)
            one._packed("x", 256, 96, bits, symmetric=symmetric)
            words, zeros, scales = (one.tensors[f"x.{part}"] for part in ("qweight", "qzeros", "scales"))
            got = dequantise(words, scales, bits, torch.bfloat16, None if symmetric else zeros)
            found[f"{bits} {symmetric}"] = torch.equal(got, one.dense["x"].T)
        one = Checkpoint(0, 0)
        one._packed("x", 1024, 192, bits)
        flat = one.tensors["x.qweight"].flatten().clone()
        matrix = Matrices(flat, torch.tensor([[bits, 0]]), one.tensors["x.scales"][None], 1024, 192)
        assert matrix.fits()
        matrix.tile()
        moved = not torch.equal(flat, one.tensors["x.qweight"].flatten())
        got = replace(matrix, tiled=True).dense(0, torch.bfloat16)
        found[f"{bits} tiled"] = moved and torch.equal(got, one.dense["x"].T)
    return found


def coverage(  # noqa: PLR0917 - each is one way to spoil the files
    vision: bool,
    fused: bool = False,
    drop: str = "",
    rename: str = "",
    change: str = "",
    text: dict[str, Any] | None = None,
    bits: dict[str, int] | None = None,
) -> list[str]:
    """A checkpoint of four layers, one of them dense: what of the model was not filled.

    `drop`: the files lack it; `rename`: `old=new`; `change`: its zero points, or its order, are others.
    """
    files = _files(4, 1, fused)
    tensors = {name: tensor for name, tensor in files.tensors.items() if not drop or drop not in name}
    if rename:
        old, _, new = rename.partition("=")
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    if change:
        tensors[change] = tensors[change] + 1
    body = minimax_toy.config(4, 1, files.bits | (bits or {}), **(text or {}))
    with _engine(body, vision=vision) as made:
        model = _build(made, 0, 1, vision=vision)
        with rank_of(0, 1):
            # Through real files once; the defects are the same in memory.
            model.load_weights(iter(tensors.items()) if drop or rename or change else _through_files(tensors))
        return toy.untouched(model)


def own_experts() -> list[str]:
    """One rank of two with expert parallelism, which is given none of the other's experts."""
    files = _files(4, 1, False)
    theirs = tuple(f".experts.{expert}." for expert in range(4, 8))
    tensors = {name: one for name, one in files.tensors.items() if not any(part in name for part in theirs)}
    more = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp", "enable_expert_parallel": True}
    with _engine(minimax_toy.config(4, 1, files.bits), vision=False, **more) as made:
        model = _build(made, 0, 2, vision=False)
        with rank_of(0, 2):
            model.load_weights(iter(tensors.items()))
        return toy.untouched(model)


@functools.cache
def _files(layers: int, dense: int, fused: bool) -> Checkpoint:
    return Checkpoint(layers, dense, fused=fused)


@contextlib.contextmanager
def _engine(body: dict[str, Any], *, vision: bool, **arguments: Any) -> Iterator[Any]:
    _register()
    if not vision:
        body = body | {"architectures": ["MiniMaxM3SparseForCausalLM"]}
    with toy.engine_config(body, dtype="bfloat16", **arguments) as made:
        yield made


def _through_files(tensors: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    with tempfile.TemporaryDirectory() as folder:
        _write(tensors, Path(folder))
        yield from _read(Path(folder))


def _write(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Three shards with an index, as a checkpoint has them."""
    from safetensors.torch import save_file

    names = sorted(tensors)
    index = {}
    for number in range(3):
        shard = f"model-{number + 1:05}-of-00003.safetensors"
        part = {name: tensors[name].contiguous() for name in names[number::3]}
        save_file(part, folder / shard)
        index |= dict.fromkeys(part, shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def _read(folder: Path) -> Any:
    from vllm.model_executor.model_loader.weight_utils import safetensors_weights_iterator

    return safetensors_weights_iterator(
        sorted(map(str, folder.glob("*.safetensors"))), use_tqdm_on_load=False
    )


def against_dense(size: int, expert_parallel: bool) -> dict[str, float]:
    """Two sparse layers on `size` ranks in lockstep: their furthest distance from the same in dense torch."""
    files = _files(2, 0, False)
    arguments: dict[str, Any] = {"enable_expert_parallel": expert_parallel}
    if size > 1:
        arguments |= {"tensor_parallel_size": size, "distributed_executor_backend": "mp"}
    with _engine(minimax_toy.config(2, 0, files.bits), vision=False, **arguments) as made:
        models = []
        for rank in range(size):
            model = _build(made, rank, size, vision=False)
            with rank_of(rank, size):
                model.load_weights(iter(files.tensors.items()))
            _process(model)
            # The next rank's layers have the same names.
            models.append((model, dict(made.compilation_config.static_forward_context)))
        generator = torch.Generator().manual_seed(3)
        x = torch.randn((5, HIDDEN), generator=generator).bfloat16()
        got = _forward(models, x, made)
    wanted = _dense(files, x)
    return {"off": float((got - wanted).float().abs().max()), "largest": float(wanted.float().abs().max())}


def _process(model: Any) -> None:
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if method is not None:
            method.process_weights_after_loading(module)


def _route(block: Any) -> None:
    """M3's routing in plain torch: that of vLLM's CPU build knows no sigmoid."""
    experts = block.experts
    # 0.24 multiplies the output by the factor, later versions do so where they can.
    factor = 2.0 if experts.routed_scaling_factor == 1.0 else 1.0

    def select_experts(hidden_states: torch.Tensor, router_logits: torch.Tensor, **_: Any) -> Any:
        scores = router_logits.float().sigmoid()
        chosen = (scores + block.e_score_correction_bias).topk(TOP_K).indices
        weights = scores.gather(1, chosen)
        return weights / weights.sum(1, keepdim=True) * factor, chosen.int()

    experts.router.select_experts = select_experts


def _forward(models: list[tuple[Any, dict[str, Any]]], x: torch.Tensor, made: Any) -> torch.Tensor:
    """Each layer on each rank, the parts added up. Attention is replaced by its own queries."""
    from vllm.forward_context import set_forward_context

    size = len(models)
    for number in range(len(models[0][0].model.layers)):
        parts = []
        for rank, (model, _) in enumerate(models):
            layer = model.model.layers[number]
            with rank_of(rank, size):
                qkv, _ = layer.self_attn.qkv_proj(layer.input_layernorm(x))
                parts.append(layer.self_attn.o_proj(qkv[:, : layer.self_attn.q_size])[0])
        x = x + sum(parts)
        parts = []
        for rank, (model, context) in enumerate(models):
            layer = model.model.layers[number]
            _route(layer.block_sparse_moe)
            made.compilation_config.static_forward_context.clear()
            made.compilation_config.static_forward_context.update(context)
            with rank_of(rank, size), set_forward_context(None, made):
                parts.append(layer.block_sparse_moe(layer.post_attention_layernorm(x)))
        x = x + sum(parts)
    return x


def _dense(files: Checkpoint, x: torch.Tensor) -> torch.Tensor:
    """The same from the dense matrices, expert by expert."""
    for number in range(2):
        prefix = f"{TEXT}layers.{number}"
        normed = _norm(x, files.dense[f"{prefix}.input_layernorm.weight"])
        queries = normed @ files.dense[f"{prefix}.self_attn.q_proj"].T
        x = x + queries @ files.dense[f"{prefix}.self_attn.o_proj"].T
        normed = _norm(x, files.dense[f"{prefix}.post_attention_layernorm.weight"])
        mlp = f"{prefix}.mlp"
        scores = torch.sigmoid(normed.float() @ files.dense[f"{mlp}.gate.weight"].T)
        chosen = (scores + files.dense[f"{mlp}.gate.e_score_correction_bias"]).topk(TOP_K).indices
        weights = scores.gather(1, chosen)
        weights = weights / weights.sum(1, keepdim=True) * 2.0
        made = _swiglu(files, f"{mlp}.shared_experts", normed).float()
        for token in range(x.size(0)):
            for expert, weight in zip(chosen[token].tolist(), weights[token], strict=True):
                made[token] += weight * _swiglu(files, f"{mlp}.experts.{expert}", normed[token]).float()
        x = x + made.bfloat16()
    return x


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    values = x.float()
    return (values / (values.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * (1 + weight.float())).bfloat16()


def _swiglu(files: Checkpoint, prefix: str, x: torch.Tensor) -> torch.Tensor:
    gate, up = (x @ files.dense[f"{prefix}.{name}"].T for name in ("gate_proj", "up_proj"))
    gate, up = gate.float().clamp(max=LIMIT), up.float().clamp(-LIMIT, LIMIT)
    return (gate * torch.sigmoid(ALPHA * gate) * (up + BETA)).bfloat16() @ files.dense[
        f"{prefix}.down_proj"
    ].T


def norm() -> dict[str, bool]:
    """Which kernels pass the self-test: none, one that forgets its `1 +`, and a right one."""
    from vllm.models.minimax_m3.nvidia.model import MiniMAXGemmaRMSNorm

    from sparkd_mods.minimax_m3_norm import in_torch, works

    def absent(*_: Any) -> Any:
        raise ModuleNotFoundError("flashinfer")

    def wrong(norm: Any, x: Any, residual: Any = None) -> Any:
        return in_torch(x, norm.weight - 1, norm.variance_epsilon, residual)

    def right(norm: Any, x: Any, residual: Any = None) -> Any:
        return in_torch(x, norm.weight, norm.variance_epsilon, residual)

    device = torch.device("cpu")
    found = {"absent": absent, "wrong": wrong, "right": right}
    return {
        name: works(one, MiniMAXGemmaRMSNorm, HIDDEN, torch.bfloat16, device) for name, one in found.items()
    }


def claims() -> dict[str, str | None]:
    from vllm.model_executor.layers.quantization import get_quantization_config

    ask = get_quantization_config("autoround_mixed").override_quantization_method
    quantised = {"quant_method": "auto-round", "bits": 16}
    model = SimpleNamespace(model_type="minimax_m3_vl")
    other = SimpleNamespace(model_type="qwen3_moe")
    return {
        "mixed": ask(quantised, None, hf_config=model),
        "four bits": ask(quantised | {"bits": 4}, None, hf_config=model),
        "another model": ask(quantised, None, hf_config=other),
        "another method": ask(quantised | {"quant_method": "gptq"}, None, hf_config=model),
    }

"""The smaller mods, each on the real classes."""

import json
import pickle
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from inside import toy
from inside.ranks import rank_of
from sparkd_mods.mimo_nvfp4_kv.layout import Slot


def configuration() -> dict[str, Any]:
    """What becomes of a config.json without auto_map."""
    from vllm.transformers_utils.config import get_config

    body = toy.config({"model.layers.0.self_attn.qkv_proj": "MXFP8"})
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(body))
        found = get_config(folder, trust_remote_code=False)
    again = pickle.loads(pickle.dumps(found))
    keys = ("rope_theta", "swa_rope_theta", "partial_rotary_factor", "v_head_dim", "hybrid_layer_pattern")
    return {
        "class": f"{type(found).__module__}.{type(found).__qualname__}",
        "kept": {key: getattr(found, key) == body[key] for key in keys},
        "quantization": found.quantization_config == body["quantization_config"],
        "pickled": again.to_dict() == found.to_dict(),
    }


OWN_CLASS = """
from transformers import PretrainedConfig


class OwnConfig(PretrainedConfig):
    model_type = "mimo_v2"
"""


def own_configuration() -> list[str]:
    """The class of a checkpoint that brings one: trusted, then not trusted."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from vllm.transformers_utils.config import get_config

    # As in a process that has read no other checkpoint before.
    CONFIG_MAPPING._extra_content.pop("mimo_v2", None)
    body = toy.config({}) | {"auto_map": {"AutoConfig": "configuration_own.OwnConfig"}}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(body))
        (Path(folder) / "configuration_own.py").write_text(OWN_CLASS)
        return [type(get_config(folder, trust_remote_code=trusted)).__name__ for trusted in (True, False)]


def mxfp8_layers() -> dict[str, str]:
    """The method that each kind of layer gets from ModelOpt's mixed configuration."""
    from vllm.model_executor.layers.linear import QKVParallelLinear

    names = {"mx": "MXFP8", "fp8": "FP8", "out": "MXFP8"}
    body = toy.config({f"model.{name}": algo for name, algo in names.items()})
    body["quantization_config"]["ignore"] = ["model.out"]
    found = {}
    with toy.engine_config(body, dtype="bfloat16") as made, rank_of(0, 1):
        for name in (*names, "else"):
            layer = QKVParallelLinear(
                256,
                64,
                4,
                4,
                bias=False,
                params_dtype=torch.bfloat16,
                quant_config=made.quant_config,
                prefix=f"model.{name}",
            )
            scale = getattr(layer, "weight_scale", None)
            found[name] = f"{layer.weight.dtype} {None if scale is None else scale.dtype}"
    return found


def merger(size: int) -> dict[str, Any]:
    """The vision merger of every rank: its biases, cut as its weights are, and zero until loaded."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.models.mimo_v2_omni import MiMoVisionPatchMerger

    found: dict[str, Any] = {"zero": [], "cut": [], "names": []}
    bias0, bias2 = torch.arange(256.0), torch.arange(64.0)
    with set_current_vllm_config(VllmConfig()):
        for rank in range(size):
            with rank_of(rank, size):
                made = MiMoVisionPatchMerger(d_model=64, context_dim=64, prefix="visual.merger")
                parameters = dict(made.named_parameters())
                found["names"].append(sorted(name for name in parameters if name.endswith("bias")))
                first, second = parameters["mlp.0.bias"], parameters["mlp.2.bias"]
                found["zero"].append(not first.any() and not second.any())
                for parameter, tensor in ((first, bias0), (second, bias2)):
                    parameter.weight_loader(parameter, tensor)
                part = bias0.chunk(size)[rank]
                found["cut"].append(torch.equal(first.data, part) and torch.equal(second.data, bias2))
    return found


def packed() -> dict[str, Any]:
    from vllm.model_executor.layers.quantization.modelopt import ModelOptMixedPrecisionConfig
    from vllm.model_executor.models.mimo_v2_omni import MiMoV2OmniForCausalLM

    mapping = MiMoV2OmniForCausalLM.packed_modules_mapping
    excluded = [f"language_model.model.layers.0.mlp.{name}" for name in ("gate_proj", "up_proj")]
    config = ModelOptMixedPrecisionConfig.from_config(
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "ignore": excluded,
            "quantized_layers": {"language_model.model.layers.0.self_attn.qkv_proj": {"quant_algo": "FP8"}},
        }
    )
    fused = "language_model.model.layers.0.mlp.gate_up_proj"
    before = config.is_layer_excluded(fused)
    config.packed_modules_mapping = mapping
    return {
        "mapping": mapping,
        "excluded": [before, config.is_layer_excluded(fused)],
        "found": config._resolve_quant_algo("language_model.model.layers.0.self_attn.qkv_proj"),
    }


def drafter_pages(block: int, packed: bool = False) -> dict[str, Any]:
    """MiMo-V2.5 at TP=2 in fp8, or in 4 bits, with a bf16 drafter: its block, and what 1 M tokens need."""
    from vllm.model_executor.layers.attention.attention import Attention
    from vllm.v1.attention.backend import AttentionType
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend

    from tests.bed import plan_kv

    own = AttentionBackendEnum["TRITON_ATTN_DIFFKV"].get_class()
    stored = "uint8" if packed else "float8_e4m3fn"

    def layer(heads: int, key: int, window: int | None, dtype: str) -> SimpleNamespace:
        return SimpleNamespace(
            attn_type=AttentionType.DECODER,
            attn_backend=TritonAttentionBackend if key == 128 else own,
            num_kv_heads=heads,
            head_size=key,
            head_size_v=128,
            sliding_window=window,
            kv_cache_dtype="nvfp4" if dtype == "uint8" else "auto",
            kv_cache_torch_dtype=getattr(torch, dtype),
        )

    target = layer(2, 192, None, stored), layer(4, 192, 128, stored)
    drafter = layer(4, 128, 1024, "bfloat16")
    config = SimpleNamespace(
        cache_config=SimpleNamespace(block_size=block, skip_page_size_padded=None),
        model_config=SimpleNamespace(use_mla=False),
        compilation_config=SimpleNamespace(
            static_forward_context=dict(enumerate((*target, drafter, object())))
        ),
    )
    specs = [Attention.get_kv_cache_spec(one, config) for one in (*target, drafter)]
    counts = (9, 39, 5)
    layers = [
        {
            "count": count,
            "heads": spec.num_kv_heads,
            "key": spec.head_size,
            "value": spec.head_size_v,
            "window": getattr(spec, "sliding_window", None),
            "dtype": "nvfp4" if packed and spec.head_size != 128 else str(spec.dtype).removeprefix("torch."),
            "head_bytes": Slot(spec.head_size, spec.head_size_v).size,
            "block": spec.block_size,
        }
        for count, spec in zip(counts, specs, strict=True)
    ]
    case = {"layers": layers, "layout": "LBNHC", "length": 1_000_000, "in_flight": 4096}
    needed = plan_kv.need(case)
    layers[-1]["block"] = block
    return {
        "blocks": [spec.block_size for spec in specs],
        "gib": needed / 2**30,
        "gib without": plan_kv.need(case) / 2**30,
    }

"""The mod mimo-nvfp4-kv: its bytes, and vLLM's choice and plan with it."""

from typing import Any

import torch

from inside import toy
from sparkd_mods.mimo_nvfp4_kv import reference
from sparkd_mods.mimo_nvfp4_kv.layout import CODES, Slot

SLOT = Slot(192, 128)


def round_trip() -> dict[str, Any]:
    """What comes back of numbers that the cache can hold, of none, of too large ones, and of chance."""
    generator = torch.Generator().manual_seed(1)

    def back(x: torch.Tensor) -> torch.Tensor:
        return reference.dequantise(*reference.quantise(x))

    exact = torch.tensor([sign * code for sign in (1, -1) for code in CODES])
    scales = torch.tensor([2.0**-9, 0.015625, 0.4375, 1.0, 1.875, 448.0])
    held = (exact * scales[:, None]).flatten()
    chance = torch.randn((4096, SLOT.key), generator=generator).bfloat16()
    key, value = (torch.randn((3, 2, width), generator=generator) for width in (SLOT.key, SLOT.value))
    packed = reference.pack(key, value)
    first = reference.unpack(packed, SLOT)
    again = reference.unpack(reference.pack(*first), SLOT)
    return {
        "exact": bool((back(held) == held).all()),
        "zero": float(back(torch.zeros(16)).abs().max()),
        "largest": float(back(torch.full((16,), 1e6)).max()),
        "error": float((back(chance) - chance).norm() / chance.norm()),
        "fp8 error": float((chance.to(torch.float8_e4m3fn).double() - chance).norm() / chance.norm()),
        "shape": list(packed.shape),
        "again": all(map(torch.equal, first, again)),
    }


def layout() -> dict[str, Any]:
    """One token whose bytes are known: 6, -0.5 and 3 first in its key, 1.5 at the end of its value."""
    key, value = torch.zeros(SLOT.key), torch.zeros(SLOT.value)
    key[:3] = torch.tensor([6.0, -0.5, 3.0])
    key[16] = 12.0
    value[-1] = 1.5
    packed = reference.pack(key, value).tolist()
    filled = {place: byte for place, byte in enumerate(packed) if byte}
    return {str(place): byte for place, byte in filled.items()}


def selection(dtype: str) -> list[dict[str, Any]]:
    """Of a rank of two, each attention layer: who computes it, and what its page takes."""
    from vllm.model_executor.models.mimo_v2 import MiMoV2FlashForCausalLM

    arguments = {"attention_backend": "TRITON_ATTN_DIFFKV", "block_size": 64}
    found = []
    with toy.engine_config(toy.config({}), dtype="bfloat16", kv_cache_dtype=dtype, **arguments) as made:
        toy.build(MiMoV2FlashForCausalLM, made, 0, 2)
        for layer in made.compilation_config.static_forward_context.values():
            if not hasattr(layer, "attn_backend"):
                continue
            spec = spec_of(layer, made)
            backend = layer.attn_backend
            found.append(
                {
                    "backend": f"{backend.__module__}.{backend.__qualname__}",
                    "name": backend.get_name(),
                    "dtype": layer.impl.kv_cache_dtype,
                    "packed": layer.impl.packed,
                    "window": layer.sliding_window,
                    "sinks": layer.impl.sinks is not None,
                    "rounds queries": layer.query_quant is not None,
                    "page": spec.page_size_bytes,
                    "stored as": str(spec.dtype),
                }
            )
    return found


def spec_of(layer: Any, made: Any) -> Any:
    """As vLLM's worker asks for it."""
    spec = layer.get_kv_cache_spec(made)
    try:
        from vllm.v1.worker.utils import customize_attention_spec
    except ImportError:
        customize = getattr(layer.attn_backend.__mro__[1], "customize_spec", None)
        return spec if customize is None else layer.attn_backend.customize_spec(spec)
    return customize_attention_spec(layer.attn_backend, spec)


def shape() -> list[int]:
    """What 0.24 asks a backend for."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    backend = AttentionBackendEnum["TRITON_ATTN_DIFFKV"].get_class()
    backend.set_head_size_v(128)
    return list(backend.get_kv_cache_shape(5, 64, 2, 192, cache_dtype_str="nvfp4"))

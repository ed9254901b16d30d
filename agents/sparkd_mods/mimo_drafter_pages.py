"""KV pages of a drafter that are larger than its model's."""

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

from sparkd_mods._framework import patch
from sparkd_mods._framework.declare import NEEDED, Mod, Target

NAME = "Attention.get_kv_cache_spec"
KERNEL_BLOCK = 16
"""Tokens: TRITON_ATTN takes multiples of it."""

MOD = Mod(
    summary="give a DFlash drafter's layers smaller blocks, so that their pages fit the model's",
    why="all layers share pages of one size: a bf16 drafter beside an fp8 model has the largest, every page "
    "of the model is padded to it, and 1 M tokens need 19.3 GiB instead of 5.5",
    upstream="unify_kv_cache_spec_page_size in kv_cache_planning.py; VLLM_KV_CACHE_LAYOUT=BLNHC or a drafter "
    "with its KV in fp8 need no mod",
    versions=">=0.32,<0.34",
    needed="0.32 and 0.33, with block-size 32 for an fp8 model, 64 for one in 4 bits",
    targets=(
        Target(
            "vllm.model_executor.layers.attention.attention",
            {
                NAME: {"ce19b9e161e2": NEEDED},  # 0.32.0, 0.33.0
            },
        ),
    ),
)


def apply(module: ModuleType) -> None:
    patch.wrap(module, NAME, _get_kv_cache_spec)


def _get_kv_cache_spec(original: Callable[..., Any], layer: Any, vllm_config: Any) -> Any:
    spec = original(layer, vllm_config)
    if not _is_drafter(layer) or spec is None:
        return spec
    pages = (_page_bytes(original(one, vllm_config), one) for one in _model_layers(vllm_config))
    page = max(pages, default=0)
    per_token = spec.page_size_bytes // spec.block_size
    if spec.page_size_bytes <= page or page == 0:
        return spec
    blocks = page // (per_token * KERNEL_BLOCK)
    return replace(spec, block_size=KERNEL_BLOCK * max(1, blocks))


def _is_drafter(layer: Any) -> bool:
    """MiMo's own layers have K and V of different widths; its DFlash drafter has neither that nor full
    attention.
    """
    equal = layer.head_size == layer.head_size_v
    return equal and layer.sliding_window is not None and layer.attn_backend.get_name() == "TRITON_ATTN"


def _model_layers(vllm_config: Any) -> list[Any]:
    layers = vllm_config.compilation_config.static_forward_context.values()
    widths = ((one, getattr(one, "head_size", None), getattr(one, "head_size_v", None)) for one in layers)
    return [one for one, key, value in widths if value is not None and value != key]


def _page_bytes(spec: Any, layer: Any) -> int:
    """As the worker makes it of the layer's spec: a backend may pack what a head takes."""
    return int(layer.attn_backend.customize_spec(spec).page_size_bytes)

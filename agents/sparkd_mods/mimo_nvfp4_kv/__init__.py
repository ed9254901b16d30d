"""A KV cache of 4 bits for heads whose keys and values differ in width, with sinks and sliding windows."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from sparkd_mods._framework import patch
from sparkd_mods._framework.declare import FIXED, NEEDED, Mod, Target

REGISTRY = "vllm.v1.attention.backends.registry"
BACKEND = "vllm.v1.attention.backends.triton_attn_diffkv"
MODEL = "vllm.model_executor.models.mimo_v2"
NAME = "TRITON_ATTN_DIFFKV"
CLASS = "sparkd_mods.mimo_nvfp4_kv.backend.Nvfp4DiffKvBackend"
ATTENTION = "MiMoV2Attention.__init__"

MOD = Mod(
    summary="kv-cache-dtype nvfp4 for MiMo-V2: a backend in the place of TRITON_ATTN_DIFFKV, which leaves "
    "all other dtypes to that one",
    why="vLLM's 4-bit KV cache takes keys and values of one width only, and no sinks: MiMo has 192 and 128, "
    "and sinks in most layers",
    upstream="flashinfer.py asserts equal widths, triton_attn_diffkv.py refuses all but fp8, up to 0.33",
    versions=">=0.24,<0.34",
    needed="all, with kv-cache-dtype nvfp4",
    targets=(
        # Nothing is wrapped: vLLM has a table for backends.
        Target(REGISTRY, {}),
        # The text that the backend is made from.
        Target(
            BACKEND,
            {
                "TritonAttentionDiffKVImpl.__init__": {
                    "19aedd51eb52": NEEDED,  # 0.24.0
                    "cde34a17d239": NEEDED,  # 0.32.0, 0.33.0
                },
                "TritonAttentionDiffKVImpl.do_kv_cache_update": {
                    "2e64be554d11": NEEDED,  # 0.24.0
                    "5da5113f1e82": NEEDED,  # 0.32.0, 0.33.0
                },
                "TritonAttentionDiffKVImpl.forward": {
                    "f34dd3c75a59": NEEDED,  # 0.24.0
                    "bb2200ea7c09": NEEDED,  # 0.32.0, 0.33.0
                },
            },
        ),
        # 0.24 keeps kv-cache-dtype from the layers.
        Target(
            MODEL,
            {
                ATTENTION: {
                    "c7a85dc3d44b": NEEDED,  # 0.24.0
                    "99a210d6e397": FIXED,  # 0.32.0
                    "5eb3c5c84736": FIXED,  # 0.33.0
                },
            },
        ),
    ),
)


def apply(module: ModuleType) -> None:
    if module.__name__ == REGISTRY:
        # Under its own name a configuration could not be read by a process that vLLM has just spawned: it
        # unpickles the name before its plugins are there.
        module.register_backend(module.AttentionBackendEnum[NAME], CLASS)
    elif module.__name__ == MODEL:
        patch.wrap(module, ATTENTION, _with_cache_config)


def _with_cache_config(original: Callable[..., None], layer: Any, *args: Any, **kwargs: Any) -> None:
    from vllm.config import get_current_vllm_config

    cache_config = get_current_vllm_config().cache_config
    # It holds the model's window, which layers with full attention would take for theirs.
    cache_config.sliding_window = None
    original(layer, *args, **({"cache_config": cache_config} | kwargs))

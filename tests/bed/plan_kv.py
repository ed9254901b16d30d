"""What vLLM's own planner bills one request: JSON list of cases on stdin, list of bytes on stdout.

A case is `{"layers": [{count, heads, key, value, window, dtype, block}], "layout", "length", "in_flight"}`.
With `"pool"`, in bytes, the answer is the tokens that it holds, as vLLM logs them. With a dtype `nvfp4`
`head_bytes` is what the backend of the mod mimo-nvfp4-kv says that a head takes.
"""

import contextlib
import json
import os
import sys
from types import SimpleNamespace
from typing import Any


def specs_of(case: dict[str, Any]) -> dict[str, Any]:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVQuantMode, SlidingWindowSpec

    specs = {}
    for kind, layers in enumerate(case["layers"]):
        shape = {
            "block_size": layers["block"],
            "num_kv_heads": layers["heads"],
            "head_size": layers["key"],
            "head_size_v": layers["value"],
            "dtype": getattr(torch, "uint8" if layers["dtype"] == "nvfp4" else layers["dtype"]),
        }
        if layers["dtype"] == "nvfp4":
            shape |= {"kv_quant_mode": KVQuantMode.NVFP4, "state_content_bytes": layers["head_bytes"]}
        window = layers.get("window")
        for number in range(layers["count"]):
            spec = SlidingWindowSpec(sliding_window=window, **shape) if window else FullAttentionSpec(**shape)
            specs[f"{kind}.{number}"] = spec
    return specs


def need(case: dict[str, Any]) -> int:
    """Bytes of one request, or with `pool` the tokens that it holds."""
    from vllm.v1.kv_cache_layout import KVCacheLayout

    try:
        from vllm.v1.core import kv_cache_planning as planner
    except ImportError:
        # Where it was up to 0.32.
        from vllm.v1.core import kv_cache_utils as planner

    layout = KVCacheLayout[case["layout"]]
    config = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=case["length"]),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        max_in_flight_tokens=case["in_flight"],
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        speculative_config=None,
        cache_config=SimpleNamespace(
            get_resolved_kv_cache_layout=lambda: layout,
            num_gpu_blocks_override=None,
            prefix_cache_retention_interval=None,
        ),
        attention_config=SimpleNamespace(hisparse_config=None),
    )
    groups = planner.get_kv_cache_groups(config, specs_of(case))
    if "pool" in case:
        from vllm.v1.core.kv_cache_utils import get_kv_cache_capacity

        made = planner.get_kv_cache_config_from_groups(config, groups, case["pool"])
        return int(get_kv_cache_capacity(config, made)[0])
    blocks = 0
    for group in groups:
        spec = group.kv_cache_spec
        if hasattr(spec, "max_memory_usage_pages"):
            blocks += spec.max_memory_usage_pages(config)
        else:
            blocks += -(-spec.max_memory_usage_bytes(config) // spec.page_size_bytes)
    return planner._get_kv_cache_bytes_per_block(groups, layout) * blocks


def main() -> None:
    # vLLM greets on stdout while it is imported; only the answer may go there.
    with contextlib.redirect_stdout(sys.stderr):
        answers = [need(case) for case in json.load(sys.stdin)]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    main()

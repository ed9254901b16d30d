"""What vLLM's own planner bills one request: JSON list of cases on stdin, list of bytes on stdout.

A case is `{"layers": [{count, heads, key, value, window, dtype, block}], "layout", "length", "in_flight"}`.
"""

import contextlib
import json
import os
import sys
from types import SimpleNamespace
from typing import Any


def specs_of(case: dict[str, Any]) -> dict[str, Any]:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    specs = {}
    for kind, layers in enumerate(case["layers"]):
        shape = {
            "block_size": layers["block"],
            "num_kv_heads": layers["heads"],
            "head_size": layers["key"],
            "head_size_v": layers["value"],
            "dtype": getattr(torch, layers["dtype"]),
        }
        window = layers.get("window")
        for number in range(layers["count"]):
            spec = SlidingWindowSpec(sliding_window=window, **shape) if window else FullAttentionSpec(**shape)
            specs[f"{kind}.{number}"] = spec
    return specs


def need(case: dict[str, Any]) -> int:
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
        cache_config=SimpleNamespace(get_resolved_kv_cache_layout=lambda: layout),
        attention_config=SimpleNamespace(hisparse_config=None),
    )
    groups = planner.get_kv_cache_groups(config, specs_of(case))
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

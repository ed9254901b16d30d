"""B1 on a GPU: Marlin's NVFP4 expert repack, upstream against the mod `nvfp4-marlin-repack`.

    PYTHONPATH=agents:SITE python benchmarks/marlin_repack.py

SITE holds a CUDA build of vLLM 0.23 or 0.24. For each shape and each way it makes the same inputs anew, and
prints the peak of torch's allocator above the inputs, what is left afterwards, and whether all six results
have the bits of upstream's. Exits with 1 if any has not.
"""

import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import vllm.model_executor.layers.quantization.utils.marlin_utils_fp4 as marlin

from sparkd_mods import nvfp4_marlin_repack as mod
from sparkd_mods._framework.source import fingerprints

MIB = 1 << 20
SHAPES = (
    # experts, hidden size, inner size of this rank
    (8, 1024, 512),
    (8, 4096, 2048),
    (8, 6144, 2048),
    (64, 4096, 1536),
    (384, 6144, 256),  # MiMo-V2.5-Pro at TP=8
    (8, 1024, 208),  # padded to Marlin's tiles: no room for the result in the input
)


def inputs(experts: int, hidden: int, inner: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator(device="cuda").manual_seed(experts * hidden + inner)

    def packed(rows: int, columns: int) -> torch.Tensor:
        return torch.randint(
            0, 256, (experts, rows, columns), dtype=torch.uint8, device="cuda", generator=generator
        )

    def scales(rows: int, columns: int) -> torch.Tensor:
        found = torch.empty((experts, rows, columns), dtype=torch.float8_e4m3fn, device="cuda")
        for expert in found:
            values = torch.rand((rows, columns), device="cuda", generator=generator) * 4 - 0.2
            expert.copy_(values.clamp_(min=0))  # some are zero, as in a real checkpoint
        return found

    def whole() -> torch.Tensor:
        return torch.rand(experts, device="cuda", generator=generator) * 1e-3 + 1e-4

    return (
        packed(2 * inner, hidden // 2),
        scales(2 * inner, hidden // 16),
        whole(),
        packed(hidden, inner // 2),
        scales(hidden, inner // 16),
        whole(),
    )


def measure(function: Callable[[], Any]) -> tuple[Any, float, float, float]:
    """The result; MiB of peak and of remains above what was allocated before; seconds."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    began = time.monotonic()
    result = function()
    torch.cuda.synchronize()
    took = time.monotonic() - began
    peak = (torch.cuda.max_memory_allocated() - before) / MIB
    return result, peak, (torch.cuda.memory_allocated() - before) / MIB, took


def same(one: tuple[torch.Tensor, ...], other: tuple[torch.Tensor, ...]) -> bool:
    return all(
        a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))
        for a, b in zip(one, other, strict=True)
    )


def main() -> int:
    upstream = {name: getattr(marlin, name) for name in (mod.SCALE_FACTOR, mod.PREPARE)}
    print(
        f"torch {torch.__version__}, {torch.cuda.get_device_name()}", fingerprints(marlin.__file__, upstream)
    )
    ways: dict[str, dict[str, Any]] = {
        "upstream": upstream,
        "scale factor only": upstream | {mod.SCALE_FACTOR: mod.scale_factor},
        "mod": {mod.SCALE_FACTOR: mod.scale_factor, mod.PREPARE: mod.prepare},
    }
    right = True
    measure(
        lambda: marlin.prepare_nvfp4_moe_layer_for_marlin(_layer(8, 1024, 512), *inputs(8, 1024, 512), True)
    )
    for shape in SHAPES:
        weights = sum(x.nbytes for i, x in enumerate(inputs(*shape)) if i in (0, 3)) / MIB
        reference: tuple[torch.Tensor, ...] | None = None
        for way, functions in ways.items():
            for name, function in functions.items():
                setattr(marlin, name, function)
            given, layer = inputs(*shape), _layer(*shape)
            prepare = getattr(marlin, mod.PREPARE)
            result, peak, left, took = measure(lambda p=prepare, a=layer, b=given: p(a, *b, True))  # type: ignore[misc]
            if reference is None:
                reference = tuple(x.cpu() for x in result)
            equal = same(reference, tuple(x.cpu() for x in result))
            right = right and equal
            print(
                f"E={shape[0]} K={shape[1]} N={shape[2]}: w13+w2 {weights:.1f} MiB, {way}: "
                f"peak {peak:.1f} MiB ({peak / weights:.2f}x), left {left:.1f} MiB, {took:.3f} s, "
                f"same bits: {equal}",
                flush=True,
            )
            del given, layer, result
    right = _factors(upstream[mod.SCALE_FACTOR]) and right
    for name, function in upstream.items():
        setattr(marlin, name, function)
    return 0 if right else 1


def _layer(experts: int, hidden: int, inner: int) -> Any:
    return SimpleNamespace(
        num_experts=experts,
        hidden_size=hidden,
        intermediate_size_per_partition=inner,
        params_dtype=torch.bfloat16,
    )


def _factors(upstream: Callable[..., float]) -> bool:
    """The scale factor alone, on what random scales seldom hold."""
    nothing = torch.zeros((2, 4, 4), dtype=torch.bfloat16, device="cuda")
    cases = {"all zero": nothing}
    for value in (2**-9, 0.7, 1.0, 2.0, 3.5, 447.0, 448.0, 500.0, float("nan"), float("inf"), -3.0):
        cases[f"one {value:g}"] = nothing.clone()
        cases[f"one {value:g}"][1, 2, 3] = value
    cases["NaN and 1"] = cases["one nan"].clone()
    cases["NaN and 1"][0, 0, 0] = 1.0
    wrong = [name for name, case in cases.items() if upstream(case, None) != mod.scale_factor(case, None)]
    print(
        f"scale factor of {len(cases)} special cases: {'differs for ' + str(wrong) if wrong else 'the same'}"
    )
    return not wrong


if __name__ == "__main__":
    sys.exit(main())

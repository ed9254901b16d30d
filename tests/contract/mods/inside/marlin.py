"""NVFP4 repack for Marlin, with a stand-in for the one compiled operation: it permutes like the real one."""

import importlib.util
import sys
import weakref
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import vllm.model_executor.layers.quantization.utils.marlin_utils_fp4 as changed

SHAPES = ((3, 256, 128), (5, 128, 64), (2, 192, 128), (3, 256, 80))
"""Experts, hidden size, inner size; the last one is padded."""


def upstream() -> ModuleType:
    """The module once more from its file, as no mod has touched it."""
    spec = importlib.util.spec_from_file_location("untouched_marlin_utils_fp4", changed.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Repack:
    """`gptq_marlin_repack`: [K/8, N] int32 -> [K/16, 2N] int32. Counts how many results are alive at once."""

    def __init__(self) -> None:
        self.alive: list[weakref.ref[torch.Tensor]] = []
        self.most = 0

    def gptq_marlin_repack(
        self, b_q_weight: torch.Tensor, size_k: int, size_n: int, **_: Any
    ) -> torch.Tensor:
        assert b_q_weight.shape == (size_k // 8, size_n)
        assert b_q_weight.is_contiguous()
        self.most = max(self.most, sum(one() is not None for one in self.alive))
        flat = b_q_weight.flatten()
        order = torch.randperm(flat.numel(), generator=torch.Generator().manual_seed(flat.numel()))
        packed = flat[order].reshape(size_k // 16, size_n * 2)
        self.alive.append(weakref.ref(packed))
        return packed


def prepared(module: ModuleType, shape: tuple[int, int, int]) -> tuple[tuple[torch.Tensor, ...], int]:
    experts, hidden, inner = shape
    made = torch.Generator().manual_seed(hidden + inner)

    def packed(rows: int, columns: int) -> torch.Tensor:
        return torch.randint(0, 256, (experts, rows, columns), dtype=torch.uint8, generator=made)

    def scales(rows: int, columns: int) -> torch.Tensor:
        values = torch.rand((experts, rows, columns), generator=made) * 4 - 0.2
        return values.clamp_(min=0).to(torch.float8_e4m3fn)

    repack = Repack()
    module.ops = repack
    module.marlin_make_workspace_new = lambda *_: torch.zeros(4, dtype=torch.int)
    layer = SimpleNamespace(
        num_experts=experts,
        hidden_size=hidden,
        intermediate_size_per_partition=inner,
        params_dtype=torch.bfloat16,
    )
    result = module.prepare_nvfp4_moe_layer_for_marlin(
        layer,
        packed(2 * inner, hidden // 2),
        scales(2 * inner, hidden // 16),
        torch.rand(experts, generator=made),
        packed(hidden, inner // 2),
        scales(hidden, inner // 16),
        torch.rand(experts, generator=made),
        is_act_and_mul=True,
    )
    return result, repack.most


def compare() -> list[dict[str, Any]]:
    found = []
    for shape in SHAPES:
        wanted, _ = prepared(upstream(), shape)
        got, most = prepared(changed, shape)
        same = [
            a.shape == b.shape
            and a.dtype == b.dtype
            and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
            for a, b in zip(wanted, got, strict=True)
        ]
        found.append({"shape": shape, "same": same, "alive": most})
    return found


def factors() -> dict[str, list[float]]:
    """Upstream's scale factor and the mod's, for what random scales seldom hold."""
    untouched = upstream()._nvfp4_compute_scale_factor
    nothing = torch.zeros((2, 4, 4), dtype=torch.bfloat16)
    cases = {"nothing": nothing, "no elements": nothing[:0]}
    values = (2.0**-9, 0.7, 1.0, 2.0, 3.5, 447.0, 448.0, 500.0, float("nan"), float("inf"), -3.0)
    for value in values:
        cases[str(value)] = nothing.clone()
        cases[str(value)][1, 2, 3] = value
    cases["nan and 1"] = cases["nan"].clone()
    cases["nan and 1"][0, 0, 0] = 1.0
    random = torch.rand((7, 300, 1000), generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    cases["more than one part"] = random * 3
    cases["turned"] = (random * 3).transpose(1, 2)
    return {
        f"{name} {dtype}": [untouched(case, dtype), changed._nvfp4_compute_scale_factor(case, dtype)]
        for name, case in cases.items()
        for dtype in (None, torch.half, torch.bfloat16)
    }


def is_changed() -> dict[str, bool]:
    return {
        name: getattr(changed, name).__module__.startswith("sparkd_mods")
        for name in ("_nvfp4_compute_scale_factor", "prepare_nvfp4_moe_layer_for_marlin")
    }


def users() -> dict[str, bool]:
    """Who imported the function by name has the changed one."""
    import vllm.model_executor.layers.fused_moe.oracle.nvfp4 as oracle

    assert "vllm.model_executor.layers.fused_moe.oracle.nvfp4" in sys.modules
    name = "prepare_nvfp4_moe_layer_for_marlin"
    return {"oracle": getattr(oracle, name) is getattr(changed, name)}

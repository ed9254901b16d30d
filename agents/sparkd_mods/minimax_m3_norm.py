"""MiniMax-M3's norm where FlashInfer's kernel for it does not run."""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from sparkd_mods._framework import patch
from sparkd_mods._framework.declare import NEEDED, Mod, Target
from sparkd_mods._framework.journal import tell

NAME = "MiniMAXGemmaRMSNorm.forward"
MODEL = "vllm.models.minimax_m3.nvidia.model"

MOD = Mod(
    summary="compute MiniMax-M3's norms in torch if FlashInfer's kernel fails on one row of numbers",
    why="the kernel is called unconditionally: where FlashInfer is absent, or does not build for the GPU, "
    "the first token ends the engine",
    upstream="minimax_m3/nvidia/model.py, the same text from 0.24 to 0.33",
    versions=">=0.24,<0.34",
    needed="where FlashInfer's kernel fails, which it finds out by itself",
    targets=(
        Target(
            MODEL,
            {
                NAME: {"a301fb0e97ab": NEEDED},  # 0.24.0 to 0.33.0
            },
        ),
    ),
)
TOLERANCE = 0.05
"""Of values around 1 in 16 bits: a kernel that works stays below a hundredth."""


def apply(module: ModuleType) -> None:
    patch.wrap(module, NAME, _forward)


def _forward(original: Callable[..., Any], norm: Any, x: Any, residual: Any = None) -> Any:
    kind: Any = type(norm)
    if works(original, kind, x.shape[-1], x.dtype, x.device):
        return original(norm, x, residual)
    return in_torch(x, norm.weight, norm.variance_epsilon, residual)


@functools.cache
def works(original: Any, kind: Any, size: int, dtype: Any, device: Any) -> bool:
    """One row through the kernel, with and without a residual, against torch. Told once if it does not."""
    import torch

    norm = kind(size).to(device=device, dtype=dtype)
    row = torch.linspace(-2, 2, size, dtype=torch.float32).to(device=device, dtype=dtype)[None]
    norm.weight.data.copy_(row[0] / 8)
    try:
        with torch.no_grad():
            alone = original(norm, row.clone())
            both = original(norm, row.clone(), row.flip(1).clone() * 0.5)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other way works
        reason = f"{type(error).__name__}: {error}"
    else:
        wanted = (in_torch(row.clone(), norm.weight, norm.variance_epsilon),)
        wanted += in_torch(row.clone(), norm.weight, norm.variance_epsilon, row.flip(1).clone() * 0.5)
        furthest = max(
            float((a.float() - b.float()).abs().max()) for a, b in zip((alone, *both), wanted, strict=True)
        )
        if furthest <= TOLERANCE:
            return True
        reason = f"off by {furthest:.3g}"
    tell(
        "minimax-m3-norm", "applied", f"FlashInfer's norm of {size} fails: {reason}; torch computes it", MODEL
    )
    return False


def in_torch(x: Any, weight: Any, epsilon: float, residual: Any = None) -> Any:
    """Gives x / rms(x) * (1 + weight), in float32; with a residual both are changed in place and given."""
    import torch

    if residual is None:
        values = x.float()
    else:
        values = x.float() + residual.float()
        residual.copy_(values)
    normed = values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + epsilon) * (1 + weight.float())
    if residual is None:
        return normed.to(x.dtype)
    return x.copy_(normed), residual

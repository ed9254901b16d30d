"""MiniMax-M3 from an AutoRound checkpoint: names, forms, and nothing left out without a word."""

import threading
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

from sparkd_mods._framework import patch
from sparkd_mods._framework.checkpoint import Checkpoint, Finding
from sparkd_mods._framework.declare import NEEDED, Mod, Target

MODEL = "vllm.models.minimax_m3.nvidia.model"
VISION = "MiniMaxM3SparseForConditionalGeneration.load_weights"
TEXT = "MiniMaxM3SparseForCausalLM.load_weights"

MOD = Mod(
    summary="load MiniMax-M3 from AutoRound's names: q, k and v dequantised beside their 16-bit indexer, "
    "fused gate and up halved, one of two copies of the vision tower; every name must find its place and "
    "every place its tensor",
    why="vLLM skips names that it does not know without a message: a model without lm_head talks fluent "
    "nonsense, a quantised q beside a 16-bit indexer spoils long contexts",
    upstream="MiniMaxM3Model.load_weights, the same text from 0.24 to 0.33",
    versions=">=0.24,<0.34",
    needed="all, for checkpoints with transformers' names",
    targets=(
        Target(
            MODEL,
            {
                VISION: {"4ab72b200055": NEEDED},  # 0.24.0 to 0.33.0
                TEXT: {"4a009663e5f4": NEEDED},  # 0.24.0 to 0.33.0
            },
        ),
    ),
)
_inside = threading.local()


def apply(module: ModuleType) -> None:
    patch.wrap(module, VISION, _load_weights)
    patch.wrap(module, TEXT, _load_weights)


def verify(checkpoint: Checkpoint, overrides: Mapping[str, Any]) -> Iterable[Finding]:
    from sparkd_mods.minimax_m3_loader import files

    return files.verify(checkpoint, overrides)


def _load_weights(
    original: Callable[..., set[str]], model: Any, weights: Iterable[tuple[str, Any]]
) -> set[str]:
    """Raises ValueError that lists what does not match; the text model inside the other is its part."""
    from sparkd_mods.minimax_m3_loader.config_table import misread
    from sparkd_mods.minimax_m3_loader.translate import Translation

    if getattr(_inside, "value", False):
        return original(model, weights)
    wrong = misread(getattr(model.config, "text_config", model.config))
    if wrong:
        raise ValueError(f"config.json, to be repaired with --hf-overrides: {'; '.join(wrong)}")
    translation = Translation(model, vision=hasattr(model, "vision_tower"))
    _inside.value = True
    try:
        loaded = original(model, translation.pairs(weights))
    finally:
        _inside.value = False
    translation.finish(loaded)
    return loaded

"""MiMo's fused QKV projection, plain or interleaved, with MXFP8 scales under either name."""

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from sparkd_mods._framework import patch
from sparkd_mods._framework.declare import NEEDED, Mod, Target

MAIN = "vllm.model_executor.models.mimo_v2"
OMNI = "vllm.model_executor.models.mimo_v2_omni"

MOD = Mod(
    summary="load fused QKV of MiMo-V2 with MXFP8 weights on every rank, in plain or interleaved order, and "
    "fail when anything of it stays unloaded",
    why="0.23 and 0.24 cut the rows wrongly for all but one layout, 0.33 refuses the scales; with a scale "
    "named weight_scale the layer keeps uninitialised memory and nothing is said",
    upstream="vllm#57508, vllm#57784, sglang#28100",
    versions=">=0.23,<0.34",
    needed="all, for checkpoints whose fused QKV is MXFP8",
    targets=(
        Target(
            MAIN,
            {
                "MiMoV2Model.load_weights": {
                    "69aaa7654306": NEEDED,  # 0.23.0
                    "bce9b8c9d3fe": NEEDED,  # 0.24.0
                    "cabf79156d4c": NEEDED,  # 0.32.0
                    "ef018f9ef58b": NEEDED,  # 0.33.0
                },
                "MiMoV2FlashForCausalLM.load_weights": {
                    "4a009663e5f4": NEEDED,  # 0.23.0 to 0.33.0
                },
            },
        ),
        Target(
            OMNI,
            {
                "MiMoV2OmniForCausalLM.load_weights": {
                    "1c7bb1cf5c1b": NEEDED,  # 0.23.0, 0.24.0
                    "3a8efe65bcde": NEEDED,  # 0.32.0, 0.33.0
                },
            },
        ),
    ),
    settings={"order": ("plain", "interleaved")},
)


def apply(module: ModuleType) -> None:
    from sparkd_mods.mimo_fused_qkv.loading import load_complete

    if module.__name__ == MAIN:
        patch.wrap(module, "MiMoV2Model.load_weights", _load_weights)
        patch.wrap(module, "MiMoV2FlashForCausalLM.load_weights", load_complete)
    else:
        patch.wrap(module, "MiMoV2OmniForCausalLM.load_weights", load_complete)


def _load_weights(
    original: Callable[..., set[str]], model: Any, weights: Iterable[tuple[str, Any]]
) -> set[str]:
    from sparkd_mods.mimo_fused_qkv.loading import FusedQkv

    # The drafter's weights stand in the same files; it loads them itself.
    fused = FusedQkv(model, "mimo-fused-qkv", skip=lambda name: "mtp" in name, unquantised=False)
    return original(model, fused.rest(weights)) | fused.loaded

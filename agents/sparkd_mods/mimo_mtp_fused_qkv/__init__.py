"""The same for MiMo's MTP drafter: fused QKV in MXFP8, block FP8 or BF16, and its quantisation found."""

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from sparkd_mods._framework import patch
from sparkd_mods._framework.declare import NEEDED, Mod, Target

MTP = "vllm.model_executor.models.mimo_v2_mtp"
DRAFTER = "model.mtp."
RENAMED = "language_model.model.mtp."

MOD = Mod(
    summary="load the fused QKV of MiMo-V2's MTP drafter on every rank, and find its quantisation behind the "
    "Omni model's renamed prefix",
    why="the drafter gets wrong rows, or none at all: answers stay right, but its guesses are never accepted",
    upstream="vllm#46669 is another fault of this drafter: keep --no-async-scheduling",
    versions=">=0.23,<0.34",
    needed="all, for MXFP8 and BF16; 0.23 and 0.24 also for block FP8",
    targets=(
        Target(
            MTP,
            {
                "MiMoV2MTP.load_weights": {
                    "42749b0648f4": NEEDED,  # 0.23.0, 0.24.0
                    "181d508d835e": NEEDED,  # 0.32.0
                    "9b16226382bb": NEEDED,  # 0.33.0
                },
                "MiMoV2MTP.__init__": {
                    "bcec08ea7ee1": NEEDED,  # 0.23.0 to 0.33.0
                },
            },
        ),
    ),
    settings={"order": ("plain", "interleaved")},
)


def apply(module: ModuleType) -> None:
    # From 0.32 on it cuts interleaved block FP8 itself; before, right for as many ranks as chunks only.
    cuts_blocks = hasattr(module, "_shard_fp8_qkv_proj")

    def load_weights(
        original: Callable[..., set[str]], model: Any, weights: Iterable[tuple[str, Any]]
    ) -> set[str]:
        from sparkd_mods.mimo_fused_qkv.loading import FusedQkv, load_complete
        from sparkd_mods.mimo_mtp_fused_qkv.block_fp8 import BlockFp8

        def load(model: Any, weights: Iterable[tuple[str, Any]]) -> set[str]:
            fused = FusedQkv(
                model, "mimo-mtp-fused-qkv", skip=lambda name: not name.startswith(DRAFTER), unquantised=True
            )
            blocks = BlockFp8(model, fused.order, fused.chunks)
            rest = fused.rest(weights)
            upstream = cuts_blocks and fused.order == "interleaved"
            loaded = original(model, rest if upstream else blocks.rest(rest))
            return loaded | fused.loaded | blocks.loaded

        return load_complete(load, model, weights)

    patch.wrap(module, "MiMoV2MTP.__init__", _init)
    patch.wrap(module, "MiMoV2MTP.load_weights", load_weights)


def _init(original: Callable[..., None], model: Any, *, vllm_config: Any, prefix: str = "") -> None:
    if vllm_config.quant_config is not None:
        drafter_names(vllm_config.quant_config)
    original(model, vllm_config=vllm_config, prefix=prefix)


def drafter_names(quant_config: Any) -> None:
    """Let the quantisation of `language_model.model.mtp.…` be found under `model.mtp.…` as well."""
    layers = getattr(quant_config, "quantized_layers", None)
    if isinstance(layers, dict):
        layers |= {
            DRAFTER + name.removeprefix(RENAMED): entry
            for name, entry in layers.items()
            if name.startswith(RENAMED)
        }
    excluded = getattr(quant_config, "exclude_modules", None)
    if isinstance(excluded, list):
        excluded += [DRAFTER + name.removeprefix(RENAMED) for name in excluded if name.startswith(RENAMED)]

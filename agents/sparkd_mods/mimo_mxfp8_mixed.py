"""MXFP8 layers in ModelOpt's mixed-precision configuration."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from sparkd_mods._framework import patch
from sparkd_mods._framework.declare import FIXED, NEEDED, Mod, Target

NAME = "ModelOptMixedPrecisionConfig.get_quant_method"

MOD = Mod(
    summary="build layers that ModelOpt's mixed configuration names MXFP8 as MXFP8",
    why="they are built unquantised without a message, and FP8 bytes are loaded as if they were BF16",
    upstream="vllm#46756, in 0.32",
    versions=">=0.23,<0.34",
    needed="0.23 and 0.24",
    targets=(
        Target(
            "vllm.model_executor.layers.quantization.modelopt",
            {
                NAME: {
                    "1b903b5be619": NEEDED,  # 0.23.0, 0.24.0
                    "6f67b76e8bd9": FIXED,  # 0.32.0, 0.33.0
                },
            },
        ),
    ),
)


def apply(module: ModuleType) -> None:
    def get_quant_method(original: Callable[..., Any], config: Any, layer: Any, prefix: str) -> Any:
        if not isinstance(layer, (module.LinearBase, module.RoutedExperts)) or config.is_layer_excluded(
            prefix
        ):
            return original(config, layer, prefix)
        if config._resolve_quant_algo(prefix) != "MXFP8":  # noqa: SLF001 - the method that the original asks
            return original(config, layer, prefix)
        mxfp8 = module.ModelOptMxFp8Config(
            is_checkpoint_mxfp8_serialized=True,
            kv_cache_quant_algo=config.kv_cache_quant_method,
            exclude_modules=[],
        )
        if isinstance(layer, module.LinearBase):
            return module.ModelOptMxFp8LinearMethod(mxfp8)
        return module.ModelOptMxFp8FusedMoE(mxfp8, layer.moe_config)

    patch.wrap(module, NAME, get_quant_method)

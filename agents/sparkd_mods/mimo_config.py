"""MiMo's `mimo_v2` configuration for checkpoints that do not bring the class along."""

from types import ModuleType

from sparkd_mods._framework.declare import FIXED, Mod, Target

MODEL_TYPE = "mimo_v2"

MOD = Mod(
    summary="a configuration class for model_type mimo_v2 that takes every key as it stands",
    why="exports without auto_map fail with `does not recognize this architecture`, also when remote code is "
    "trusted",
    upstream="transformers up to 5.24 knows mimo_v2_flash only, vLLM's _CONFIG_REGISTRY up to 0.33 neither",
    versions=">=0.23,<0.34",
    needed="all, for exports whose config.json has no auto_map",
    # Nothing is wrapped: the class goes into vLLM's own table, unless somebody was there before.
    targets=(Target("vllm.transformers_utils.config", {}),),
)


def apply(module: ModuleType) -> str | None:
    registry = module._CONFIG_REGISTRY  # noqa: SLF001 - the place where vLLM's own classes stand
    if MODEL_TYPE in registry:
        return FIXED
    from sparkd_mods._mimo_config_class import MiMoV2Config

    registry[MODEL_TYPE] = MiMoV2Config
    return None

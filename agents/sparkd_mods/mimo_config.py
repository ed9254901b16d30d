"""MiMo's `mimo_v2` configuration for checkpoints that do not bring the class along."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from sparkd_mods._framework import patch
from sparkd_mods._framework.declare import FIXED, NEEDED, Mod, Target

MODEL_TYPE = "mimo_v2"
PARSE = "HFConfigParser.parse"

MOD = Mod(
    summary="a configuration class for model_type mimo_v2 that takes every key as it stands; a checkpoint "
    "that brings its own class, and may run it, keeps that one",
    why="exports without auto_map fail with `does not recognize this architecture`, also when remote code is "
    "trusted",
    upstream="transformers up to 5.24 knows mimo_v2_flash only, vLLM's _CONFIG_REGISTRY up to 0.33 neither",
    versions=">=0.23,<0.34",
    needed="all, for exports whose config.json has no auto_map",
    targets=(
        Target(
            "vllm.transformers_utils.config",
            {
                PARSE: {
                    "5d6b0a7b9c05": NEEDED,  # 0.23.0
                    "961b95f6ce1f": NEEDED,  # 0.24.0
                    "5fa0bce9e780": NEEDED,  # 0.32.0, 0.33.0
                },
            },
        ),
    ),
)


def apply(module: ModuleType) -> str | None:
    registry = module._CONFIG_REGISTRY  # noqa: SLF001 - the table of vLLM's own classes
    if MODEL_TYPE in registry:
        return FIXED
    from sparkd_mods._mimo_config_class import MiMoV2Config

    def parse(
        original: Callable[..., Any], parser: Any, model: Any, trust_remote_code: bool, **more: Any
    ) -> Any:
        # What stands in the table is taken even if the checkpoint has a class of its own.
        if trust_remote_code and _brings_its_class(model):
            registry.pop(MODEL_TYPE, None)
        else:
            registry[MODEL_TYPE] = MiMoV2Config
        return original(parser, model, trust_remote_code, **more)

    registry[MODEL_TYPE] = MiMoV2Config
    patch.wrap(module, PARSE, parse)
    return None


def _brings_its_class(model: Any) -> bool:
    try:
        config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False  # whoever reads it next says what is wrong with it
    return "AutoConfig" in (config.get("auto_map") or {})

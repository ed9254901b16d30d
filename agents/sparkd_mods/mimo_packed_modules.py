"""Which layers of MiMo's Omni wrapper are fused ones, for the lookup of their quantisation."""

from types import ModuleType

from sparkd_mods._framework.declare import FIXED, Mod, Target

CLASS = "MiMoV2OmniForCausalLM"
MAPPING = {"qkv_proj": ["qkv_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}

MOD = Mod(
    summary="tell the quantisation of the Omni wrapper which of its layers are fused",
    why="layers that the checkpoint excludes from quantisation are not recognised, up to 0.24 quantised ones "
    "neither: the wrapper's mapping is empty and hides the inner model's",
    upstream="mimo_v2_omni.py; from 0.32 on quantised layers are found by a fallback, excluded ones are not",
    versions=">=0.23,<0.34",
    needed="all, for Omni checkpoints with a quantisation per layer",
    # Nothing is wrapped: the class gets an attribute that it lacks.
    targets=(Target("vllm.model_executor.models.mimo_v2_omni", {}),),
)


def apply(module: ModuleType) -> str | None:
    wrapper = getattr(module, CLASS)
    if vars(wrapper).get("packed_modules_mapping"):
        return FIXED
    wrapper.packed_modules_mapping = {name: list(parts) for name, parts in MAPPING.items()}
    return None

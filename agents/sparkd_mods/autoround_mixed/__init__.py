"""AutoRound with a 16-bit base and 2, 3, 4 or 8 bits for each expert: a quantisation that vLLM lacks."""

from types import ModuleType

from sparkd_mods._framework.declare import FIXED, Mod, Target

MOD = Mod(
    summary="serve MiniMax-M3 checkpoints that AutoRound made with another width for every expert; it claims "
    "them by itself, and no file of theirs is changed",
    why="vLLM refuses a base of 16 bits, and gives all experts of a layer one width",
    upstream="vllm's inc.py up to 0.33: 2 to 8 bits, one per fused layer",
    versions=">=0.24,<0.34",
    needed="all, for mixed AutoRound checkpoints of MiniMax-M3; with it goes minimax-m3-loader",
    # Nothing is wrapped: vLLM has a table for such methods.
    targets=(Target("vllm.model_executor.layers.quantization", {}),),
)


def apply(module: ModuleType) -> str | None:
    from sparkd_mods.autoround_mixed.config import NAME, AutoRoundMixedConfig

    if NAME in module.QUANTIZATION_METHODS:
        return FIXED
    module.register_quantization_config(NAME)(AutoRoundMixedConfig)
    return None

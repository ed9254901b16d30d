"""vLLM's view of the quantisation: which method each layer gets. Imported once vLLM asks for it."""

from collections.abc import Mapping
from typing import Any

import torch
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

from sparkd_mods.autoround_mixed import widths

NAME = "autoround_mixed"
MODEL_TYPE = "minimax_m3"
_NOT_QUANTISED = ("vision_tower", "multi_modal_projector", "patch_merge_mlp", "lm_head", "embed_tokens")


class AutoRoundMixedConfig(QuantizationConfig):  # type: ignore[misc]  # vLLM is not there where types are checked
    """16 bits where nothing else is said, and 2, 3, 4 or 8 for each module that `extra_config` names."""

    def __init__(self, bits: Mapping[str, int], group_size: int) -> None:
        super().__init__()
        self.bits = dict(bits)
        self.group_size = group_size

    @classmethod
    def get_name(cls) -> str:
        return NAME

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        return 80

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []  # it stands in config.json

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "AutoRoundMixedConfig":
        return cls(widths.read(config), config["group_size"])

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: dict[str, Any], user_quant: str | None, hf_config: Any = None
    ) -> str | None:
        """Claims what AutoRound made of a MiniMax-M3 with a base of 16 bits. vLLM asks here first."""
        mixed = hf_quant_cfg.get("quant_method") in {"auto-round", NAME} and hf_quant_cfg.get("bits", 0) >= 16
        model_type = str(getattr(hf_config, "model_type", ""))
        wanted = user_quant in {None, NAME, "auto-round", "inc"}
        return NAME if mixed and wanted and model_type.startswith(MODEL_TYPE) else None

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
        from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod

        from sparkd_mods.autoround_mixed.experts import MixedExpertsMethod
        from sparkd_mods.autoround_mixed.linear import PackedLinearMethod

        if isinstance(layer, RoutedExperts):
            count = layer.global_num_experts
            return MixedExpertsMethod(
                layer.moe_config, widths.of_experts(self.bits, prefix, count), self.group_size
            )
        if not isinstance(layer, LinearBase):
            return None
        # Its q, k and v arrive dequantised, beside an indexer that never was quantised.
        plain = prefix.endswith(".qkv_proj") or any(part in prefix.split(".") for part in _NOT_QUANTISED)
        bits = widths.UNQUANTISED if plain else widths.of_linear(self.bits, prefix)
        if bits == widths.UNQUANTISED:
            return UnquantizedLinearMethod()
        return PackedLinearMethod(bits, self.group_size)

"""What a MiniMax-M3's config.json must say, and the least that vLLM has to be told where it says otherwise.

vLLM's own class has the right value for every key that is missing; a wrong one, or a null, survives. The
values are those of MiniMax-M3's modelling code, as vLLM's class has them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

MEANINGS: Final[Mapping[str, Any]] = {
    "hidden_act": "swigluoai",
    "swiglu_alpha": 1.702,
    "swiglu_beta": 1.0,
    "swiglu_limit": 7.0,
    "rope_theta": 5_000_000,
    "partial_rotary_factor": 0.5,
    "use_gemma_norm": True,
    "use_qk_norm": True,
    "qk_norm_type": "per_head",
    "n_shared_experts": 1,
    "scoring_func": "sigmoid",
    "use_routing_bias": True,
    "routed_scaling_factor": 2.0,
}
"""No shape shows that one of these is wrong: the model answers, and answers badly."""
SIZES: Final[Mapping[str, Any]] = {
    "head_dim": 128,
    "rotary_dim": 64,
    "dense_intermediate_size": 12288,
    "shared_intermediate_size": 3072,
}
VISION, TEXT = "MiniMaxM3SparseForConditionalGeneration", "MiniMaxM3SparseForCausalLM"
_WHY = {
    "n_shared_experts": "the shared expert would be left out without a message",
    "hidden_act": "vLLM ends with `Unsupported activation`",
}
_ROPE = {"rope_theta", "partial_rotary_factor"}


@dataclass(frozen=True)
class Difference:
    level: str
    """`text_config`, which vLLM reads, or `top level`, which it does not."""
    key: str
    found: Any
    wanted: Any

    @property
    def said(self) -> str:
        why = f": {_WHY[self.key]}" if self.level == "text_config" and self.key in _WHY else ""
        return f"{self.level}: {self.key} is {self.found!r}, not {self.wanted!r}{why}"


@dataclass(frozen=True)
class Checked:
    """`wrong`: at either level. `missing`: (level, key), where vLLM's class is right by itself."""

    wrong: tuple[Difference, ...]
    missing: tuple[tuple[str, str], ...]
    overrides: Mapping[str, Any]
    """The smallest `--hf-overrides` that repairs what vLLM reads; empty if nothing is wrong there."""


def check(config: Mapping[str, Any]) -> Checked:
    """config.json against the table, at both levels."""
    text = config.get("text_config") or config
    levels = [("text_config", text)] + ([("top level", config)] if text is not config else [])
    wrong: list[Difference] = []
    missing: list[tuple[str, str]] = []
    for level, values in levels:
        for key, wanted in {**MEANINGS, **SIZES}.items():
            found = _value(values, key)
            if found is _ABSENT:
                missing.append((level, key))
            elif found != wanted:
                wrong.append(Difference(level, key, found, wanted))
    repaired = {one.key: one.wanted for one in wrong if one.level == "text_config"}
    nested = {"text_config": repaired} if repaired and text is not config else repaired
    overrides: dict[str, Any] = dict(nested)
    if config.get("architectures") not in ([VISION], [TEXT]):
        wrong.append(Difference("top level", "architectures", config.get("architectures"), [VISION]))
        overrides["architectures"] = [VISION if config.get("vision_config") else TEXT]
    return Checked(tuple(wrong), tuple(missing), overrides)


def misread(config: Any) -> list[str]:
    """What a built model's text configuration has wrong that no shape would show, in words."""
    found = ((key, wanted, getattr(config, key, _ABSENT)) for key, wanted in MEANINGS.items())
    return [
        Difference("text_config", key, value, wanted).said
        for key, wanted, value in found
        if value is not _ABSENT and value != wanted
    ]


def lacking(overrides: Mapping[str, Any], given: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The wanted overrides that are not among the given ones: `text_config.hidden_act` -> value."""
    found: dict[str, Any] = {}
    for key, value in overrides.items():
        other = given.get(key)
        if isinstance(value, Mapping):
            found |= lacking(value, other if isinstance(other, Mapping) else {}, f"{prefix}{key}.")
        elif other != value:
            found[f"{prefix}{key}"] = value
    return found


_ABSENT: Final = object()


def _value(values: Mapping[str, Any], key: str) -> Any:
    """Newer exports keep the rotary ones in `rope_parameters`."""
    nested = values.get("rope_parameters")
    if key in _ROPE and key not in values and isinstance(nested, Mapping) and key in nested:
        return nested[key]
    return values.get(key, _ABSENT)

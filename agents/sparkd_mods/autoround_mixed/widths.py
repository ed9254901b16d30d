"""Which module of a checkpoint has how many bits, by the names that vLLM gives them.

A checkpoint's `extra_config` names modules as its own files do; vLLM's layers have other names below their
`layers.N`, and several of its layers are one of ours. Everything here is text.
"""

import re
from collections.abc import Mapping
from typing import Any

from sparkd_mods.autoround_mixed.packing import WIDTHS

UNQUANTISED = 16
_LAYER = re.compile(r"(?:.*\.)?(layers\.\d+\..+)")
_EXPERT = re.compile(r"\bmlp\.experts\.(\d+)\.(gate|up|down)_proj$")
_EXPERT_PARTS = {"gate": "w1", "up": "w3", "down": "w2"}
_FUSED = {"gate_up_proj": ("gate_proj", "up_proj")}


class WidthsError(ValueError):
    """The checkpoint's own description of its quantisation is not one that this method can serve."""


def own_name(name: str) -> str:
    """`model.language_model.layers.3.mlp.experts.7.gate_proj` -> `layers.3.block_sparse_moe.experts.7.w1`.

    Whatever stands before `layers.N` is dropped: the checkpoint and vLLM's two wrappers differ in it only.
    """
    found = _LAYER.fullmatch(name)
    name = found[1] if found else name
    name = _EXPERT.sub(lambda one: f"block_sparse_moe.experts.{one[1]}.{_EXPERT_PARTS[one[2]]}", name)
    return name.replace(".mlp.shared_experts.", ".block_sparse_moe.shared_experts.")


def read(config: Mapping[str, Any]) -> dict[str, int]:
    """The width of each quantised module, by `own_name`. Raises WidthsError: lists what cannot be served."""
    wanted = {"sym": True, "packing_format": "auto_round:auto_gptq"}
    wrong = [
        f"{key} is {config.get(key)!r}, not {value!r}"
        for key, value in wanted.items()
        if config.get(key) != value
    ]
    group = config.get("group_size")
    if not isinstance(group, int) or group <= 0 or group % 32:
        wrong.append(f"group_size is {group!r}, not a multiple of 32")
    found: dict[str, int] = {}
    for name, entry in (config.get("extra_config") or {}).items():
        bits = entry.get("bits", config.get("bits"))
        if bits >= UNQUANTISED:
            continue
        differs = [key for key in ("group_size", "sym") if key in entry and entry[key] != config.get(key)]
        if bits not in WIDTHS:
            wrong.append(f"{name} has {bits} bits")
        if differs:
            wrong.append(f"{name} has a {' and a '.join(differs)} of its own")
        found[own_name(name)] = bits
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise WidthsError(f"quantization_config: {'; '.join(wrong[:5])}{more}")
    return found


def of_linear(widths: Mapping[str, int], prefix: str) -> int:
    """The width of a linear layer, 16 if it is not quantised. Raises WidthsError if its parts differ."""
    name = own_name(prefix)
    stem, _, last = name.rpartition(".")
    parts = _FUSED.get(last, ())
    found = (
        {widths.get(f"{stem}.{part}", UNQUANTISED) for part in parts}
        if name not in widths
        else {widths[name]}
    )
    found = found or {UNQUANTISED}
    if len(found) > 1:
        raise WidthsError(f"{prefix}: its parts {' and '.join(parts)} have different widths: {sorted(found)}")
    return found.pop()


def of_experts(widths: Mapping[str, int], prefix: str, count: int) -> list[tuple[int, int]]:
    """(width of gate and up, width of down) of every expert. Raises WidthsError that names those without."""
    name = own_name(prefix).removesuffix(".routed_experts")
    found, wrong = [], []
    for expert in range(count):
        gate, up, down = (widths.get(f"{name}.{expert}.{part}") for part in ("w1", "w3", "w2"))
        if gate is None or down is None or gate != up:
            wrong.append(f"{name}.{expert} has {gate}, {up} and {down} bits")
        else:
            found.append((gate, down))
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise WidthsError(
            f"gate and up of an expert must have one width, and all three some: {'; '.join(wrong[:5])}{more}"
        )
    return found

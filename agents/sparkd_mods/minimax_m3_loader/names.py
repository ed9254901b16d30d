"""What becomes of each tensor of a MiniMax-M3 checkpoint: a table of names. Everything here is text.

Two copies of the vision tower may lie in the files, one named for transformers (`model.vision_tower.…`), one
for vLLM (`vision_tower.…`); vLLM's is taken and the other left.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

Part = Literal["qweight", "qzeros", "scales", "g_idx"]
PARTS: Final[tuple[Part, ...]] = ("qweight", "qzeros", "scales", "g_idx")
NEEDED_PARTS: Final[tuple[Part, ...]] = ("qweight", "qzeros", "scales")

LM_HEADS = ("lm_head.weight", "language_model.lm_head.weight", "model.language_model.lm_head.weight")
_LEFT = ("model.vision_tower.", "model.multi_modal_projector.", "model.patch_merge")
_VISION = ("vision_tower.", "multi_modal_projector.", "patch_merge_mlp.")
_TEXT = "model.language_model."
_LAYER = re.compile(r"layers\.\d+\..+")
_QKV = re.compile(r"(layers\.\d+\.self_attn\.[qkv]_proj)\.(qweight|qzeros|scales|g_idx)$")
_GATE_UP = re.compile(r"(.+)\.gate_up_proj\.(qweight|qzeros|scales|g_idx|weight)$")


@dataclass(frozen=True)
class Skip:
    """Not for this model."""

    why: str


@dataclass(frozen=True)
class Pass:
    """Loaded under this name."""

    name: str


@dataclass(frozen=True)
class Dequantise:
    """One part of a projection that is loaded in 16 bits, under `stem` + `.weight`."""

    stem: str
    part: str


@dataclass(frozen=True)
class Halve:
    """Gate and up in one tensor, the halves of its outputs."""

    gate: str
    up: str
    part: str


Action = Skip | Pass | Dequantise | Halve

_EXPERT = re.compile(r"\bmlp\.experts\.(\d+)\.(gate|down|up)_proj\.")
_EXPERT_PARTS = {"gate": "w1", "down": "w2", "up": "w3"}
_RENAMED: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"\bself_attn\.indexer\."), "self_attn.index_"),
    (_EXPERT, lambda one: f"block_sparse_moe.experts.{one[1]}.{_EXPERT_PARTS[one[2]]}."),
    (re.compile(r"\bmlp\.shared_experts\."), "block_sparse_moe.shared_experts."),
    (re.compile(r"\bmlp\.gate\.weight$"), "block_sparse_moe.gate.weight"),
    (re.compile(r"\bmlp\.(?:gate\.)?e_score_correction_bias$"), "block_sparse_moe.e_score_correction_bias"),
)


def action(name: str, *, vision: bool) -> Action | None:
    """What to do with a tensor; None if the table lacks its name. `vision`: the model has the tower."""
    if "mtp." in name:
        return Skip("of the drafter")
    if name.startswith(_LEFT):
        return Skip("of the other copy of the vision tower")
    if name.startswith(_VISION):
        return Pass(name) if vision else Skip("of the vision tower, which is not served")
    text = "language_model." if vision else ""
    if name in LM_HEADS:
        return Pass(f"{text}lm_head.weight")
    if not name.startswith(_TEXT):
        return None
    rest = name.removeprefix(_TEXT)
    stem = f"{text}model."
    if rest in {"embed_tokens.weight", "norm.weight"}:
        return Pass(stem + rest)
    if not _LAYER.fullmatch(rest):
        return None
    found = _QKV.fullmatch(rest)
    if found:
        return Dequantise(stem + found[1], found[2])
    for pattern, new in _RENAMED:
        rest = pattern.sub(new, rest)
    found = _GATE_UP.fullmatch(rest)
    if found:
        return Halve(
            f"{stem}{found[1]}.gate_proj.{found[2]}", f"{stem}{found[1]}.up_proj.{found[2]}", found[2]
        )
    return Pass(stem + rest)


@dataclass(frozen=True)
class Place:
    """A part of a parameter: which one, and which shard of it; None for a whole one."""

    parameter: str
    shard: str | None = None


_STACKED = (
    (".self_attn.q_proj.", ".self_attn.qkv_proj.", "q"),
    (".self_attn.k_proj.", ".self_attn.qkv_proj.", "k"),
    (".self_attn.v_proj.", ".self_attn.qkv_proj.", "v"),
    (".self_attn.index_q_proj.", ".self_attn.qkv_proj.", "index_q"),
    (".self_attn.index_k_proj.", ".self_attn.qkv_proj.", "index_k"),
    (".gate_proj.", ".gate_up_proj.", "gate"),
    (".up_proj.", ".gate_up_proj.", "up"),
)
_ROUTED = re.compile(r"\.experts\.(\d+)\.(w[123])\.")
_PREFIXED = ("multi_modal_projector.", "patch_merge_mlp.")


def place(name: str) -> Place:
    """Where vLLM's own loaders put a tensor that was given to them under this name."""
    if name.startswith(_PREFIXED):
        name = f"vision_tower.{name}"
    if name.startswith("vision_tower."):
        name = re.sub(r"\.mlp\.(fc[12])\.", r".\1.", name)
    routed = _ROUTED.search(name)
    if routed:
        kind = "w2" if routed[2] == "w2" else "w13"
        name = _ROUTED.sub(f".experts.routed_experts.{kind}_", name)
        return Place(name, f"{routed[2]} of expert {routed[1]}")
    for own, fused, shard in _STACKED:
        if own in name:
            return Place(name.replace(own, fused), shard)
    return Place(name)

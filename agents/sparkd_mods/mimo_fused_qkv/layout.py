"""The two orders in which MiMo checkpoints store a fused QKV projection, and which one a checkpoint has.

plain        [Q | K | V], each with all its heads
interleaved  C chunks [Q_c | K_c | V_c]; C = the KV heads of the global layers, also for layers with more

Their shapes are the same, so no shape tells them apart.
"""

from dataclasses import dataclass
from typing import Any, Literal

Order = Literal["plain", "interleaved"]
ORDERS: tuple[Order, ...] = ("plain", "interleaved")
CONFIG_KEY = "fused_qkv_weight_order"


@dataclass(frozen=True)
class Heads:
    """Of one attention layer, over all ranks."""

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int

    @property
    def rows(self) -> int:
        return self.heads * self.head_dim + self.kv_heads * (self.head_dim + self.v_head_dim)


def heads_of(attention: Any) -> Heads:
    """The geometry of a `MiMoV2Attention`."""
    return Heads(
        attention.total_num_heads, attention.total_num_kv_heads, attention.head_dim, attention.v_head_dim
    )


def order_of(setting: str | None, config: Any, quant_name: str | None) -> Order:
    """The profile's setting, else the config's own key, else a rule: what ModelOpt exports is plain.

    `quant_name` is the quantisation method. Raises ValueError for a value that is neither.
    """
    for value in (setting, getattr(config, CONFIG_KEY, None)):
        if value is None:
            continue
        for order in ORDERS:
            if value == order:
                return order
        raise ValueError(f"the fused QKV order is `plain` or `interleaved`, not {value!r}")
    return "plain" if (quant_name or "").startswith("modelopt") else "interleaved"


def to_plain(tensor: Any, heads: Heads, chunks: int) -> Any:
    """Rows of an interleaved tensor in plain order; anything with one row for each row of the weight.

    Raises ValueError if the heads do not divide into so many chunks, or the rows are not the projection's.
    """
    if heads.heads % chunks or heads.kv_heads % chunks or tensor.size(0) != heads.rows:
        raise ValueError(f"{tensor.size(0)} rows are not {heads} in {chunks} chunks")
    sizes = [heads.heads * heads.head_dim, heads.kv_heads * heads.head_dim, heads.kv_heads * heads.v_head_dim]
    by_chunk = tensor.unflatten(0, (chunks, -1))
    parts = by_chunk.split([size // chunks for size in sizes], dim=1)
    import torch

    return torch.cat([part.flatten(0, 1) for part in parts])

"""Routed experts of mixed widths in plain torch: what every other way of computing them is compared with."""

from dataclasses import dataclass
from typing import Any

from sparkd_mods.autoround_mixed import tiles
from sparkd_mods.autoround_mixed.packing import packed_rows, scaled, unpack


@dataclass(frozen=True)
class Activation:
    """gate * sigmoid(alpha * gate) * (up + beta), the gate clamped from above, up on both sides."""

    alpha: float
    beta: float
    limit: float

    def __call__(self, gate: Any, up: Any) -> Any:
        import torch

        gate, up = gate.float().clamp(max=self.limit), up.float().clamp(-self.limit, self.limit)
        return gate * torch.sigmoid(self.alpha * gate) * (up + self.beta)


@dataclass(frozen=True)
class Matrices:
    """The same matrix of every expert that a rank holds, each in its own width.

    words    int32 [all words]: one matrix after the other, each as many as [rows * bits / 32, columns]
    table    int64 [experts, 2]: the bits of each, and where it begins in `words`
    scales   [experts, rows / group, columns]
    """

    words: Any
    table: Any
    scales: Any
    rows: int
    columns: int
    tiled: bool = False
    """Whether the words lie in the order of the kernels (tiles.py), else in GPTQ's (packing.py)."""

    @property
    def group(self) -> int:
        return int(self.rows // self.scales.size(1))

    def packed(self, expert: int) -> tuple[Any, int]:
        """The words of one expert, a view, and their width."""
        bits, begin = (int(one) for one in self.table[expert])
        rows = packed_rows(self.rows, bits)
        return self.words[begin : begin + rows * self.columns].view(rows, self.columns), bits

    def dense(self, expert: int, dtype: Any) -> Any:
        words, bits = self.packed(expert)
        values = tiles.values_of(words, bits) if self.tiled else unpack(words, bits)
        return scaled(values, self.scales[expert], bits, dtype)

    def fits(self) -> bool:
        """Whether the kernels can have it."""
        return tiles.fits(self.rows, self.columns, self.group)

    def tile(self) -> None:
        """Re-order the words for the kernels, in place, one matrix at a time."""
        for expert in range(self.table.size(0)):
            words, bits = self.packed(expert)
            words.copy_(tiles.tiled(words, bits))


def run(  # noqa: PLR0917 - as vLLM gives them
    x: Any, w13: Matrices, w2: Matrices, activation: Activation, weights: Any, local: Any
) -> Any:
    """From x [tokens, hidden] the sum over each token's experts, in float32 until the end.

    `w13` has gate and up column by column: even ones are gate's. `weights`, `local`: [tokens, top-k]; the
    experts as numbered on this rank, below 0 where they are another's.
    """
    import torch

    result = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in local[local >= 0].unique().tolist():
        token, choice = (local == expert).nonzero(as_tuple=True)
        both = x[token] @ w13.dense(expert, x.dtype)
        made = activation(both[:, 0::2], both[:, 1::2]).to(x.dtype) @ w2.dense(expert, x.dtype)
        result.index_add_(0, token, made.float() * weights[token, choice, None].float())
    return result.to(x.dtype)

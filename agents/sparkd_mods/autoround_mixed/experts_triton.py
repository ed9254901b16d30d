"""Experts of mixed widths on a GPU: which rows make a block, and the launches of the kernels."""

from dataclasses import dataclass
from typing import Any

import torch
import triton

from sparkd_mods.autoround_mixed import kernels
from sparkd_mods.autoround_mixed.experts_torch import Activation, Matrices

SINGLE = 16
"""Up to so many pairs of a token and an expert, each is a block of its own (docs/measurements.md)."""
CHUNK = 2048
"""Tokens at a time: what is kept between the kernels is top-k times as long as they are."""


@dataclass(frozen=True)
class Shape:
    """Of programs: the rows of a block, their columns, their warps, and the steps that are under way."""

    rows: int
    columns: int
    warps: int
    stages: int


ALONE = Shape(8, 32, 2, 3)
"""For a block of one row; a tensor core takes no fewer than eight."""
FEW, MANY = Shape(8, 64, 4, 4), Shape(16, 64, 4, 3)


@dataclass(frozen=True)
class Blocks:
    """Pairs sorted by expert and cut into blocks.

    pairs    int32 [blocks * rows]: pair numbers, -1 where a block is not full
    experts  int32 [blocks]: whose they are, -1 for a block without any
    """

    pairs: Any
    experts: Any


def blocks_of(local: Any, experts: int, rows: int) -> Blocks:
    """`local` [pairs]: each pair's expert on this rank, below 0 for another's. Nothing waits for the GPU."""
    pairs = local.numel()
    bucket = torch.where(local < 0, experts, local).long()
    counts = torch.zeros(experts + 1, dtype=torch.long, device=local.device)
    counts.scatter_add_(0, bucket, torch.ones_like(bucket))
    needed = (counts + rows - 1) // rows
    needed[experts:].zero_()
    ends = needed.cumsum(0)
    most = min(pairs, pairs // rows + experts)
    owner = torch.searchsorted(ends, torch.arange(most, device=local.device), right=True)
    order = bucket.argsort(stable=True)
    sorted_bucket = bucket[order]
    nth = torch.arange(pairs, device=local.device) - (counts.cumsum(0) - counts)[sorted_bucket]
    place = (ends - needed)[sorted_bucket] * rows + nth
    place = torch.where(sorted_bucket == experts, most * rows, place)
    found = torch.full((most * rows + 1,), -1, dtype=torch.int32, device=local.device)
    found.scatter_(0, place, order.to(torch.int32))
    return Blocks(found[:-1], torch.where(owner < experts, owner, -1).to(torch.int32))


def run(  # noqa: PLR0917 - as vLLM gives them
    x: Any, w13: Matrices, w2: Matrices, activation: Activation, weights: Any, local: Any
) -> Any:
    """As `experts_torch.run`, of matrices that were tiled."""
    parts = zip(x.split(CHUNK), weights.split(CHUNK), local.split(CHUNK), strict=True)
    done = [_run(part.contiguous(), w13, w2, activation, some, mine) for part, some, mine in parts]
    return done[0] if len(done) == 1 else torch.cat(done)


def _run(  # noqa: PLR0917 - as `run`
    x: Any, w13: Matrices, w2: Matrices, activation: Activation, weights: Any, local: Any
) -> Any:
    tokens, top_k = local.shape
    hidden, inner = w13.rows, w2.rows
    pairs = local.flatten()
    made = torch.empty((pairs.numel(), inner), dtype=x.dtype, device=x.device)
    single = pairs.numel() <= SINGLE
    if single:
        shape, blocks = ALONE, Blocks(pairs, pairs)
        out = torch.empty((pairs.numel(), hidden), dtype=x.dtype, device=x.device)
    else:
        shape = FEW if pairs.numel() <= 8 * w13.table.size(0) else MANY
        blocks = blocks_of(pairs, w13.table.size(0), shape.rows)
        out = torch.zeros((pairs.numel(), hidden), dtype=x.dtype, device=x.device)
    count = blocks.experts.numel()
    kernels.gate_up[2 * inner // shape.columns, count](
        x, made, _halves(w13), w13.table, w13.scales, blocks.pairs, blocks.experts, top_k, hidden, inner,
        activation.alpha, activation.beta, activation.limit,
        GROUP=w13.group, SINGLE=single, **_options(shape, x),
    )  # fmt: skip
    kernels.product[hidden // shape.columns, count](
        made, out, _halves(w2), w2.table, w2.scales, weights.flatten().float(), blocks.pairs, blocks.experts,
        inner, hidden,
        GROUP=w2.group, SINGLE=single, **_options(shape, x),
    )  # fmt: skip
    return out.view(tokens, top_k, hidden).sum(dim=1)


def linear(x: Any, matrix: Matrices, bits: int) -> Any:
    """The product of x [tokens, in] and a matrix that stands alone in `matrix`, tiled."""
    tokens = x.size(0)
    shape = FEW if tokens <= FEW.rows else MANY
    out = torch.empty((tokens, matrix.columns), dtype=x.dtype, device=x.device)
    kernels.linear[matrix.columns // shape.columns, triton.cdiv(tokens, shape.rows)](
        x.contiguous(), out, _halves(matrix), matrix.scales, matrix.rows, matrix.columns, tokens,
        BITS=bits, GROUP=matrix.group, **_options(shape, x),
    )  # fmt: skip
    return out


def _halves(matrix: Matrices) -> Any:
    return matrix.words.view(torch.int16)


def _options(shape: Shape, x: Any) -> dict[str, Any]:
    # The interpreter knows neither PTX nor bf16.
    packed = x.dtype == torch.bfloat16 and not triton.knobs.runtime.interpret
    return {
        "ROWS": shape.rows,
        "COLUMNS": shape.columns,
        "STAGES": shape.stages,
        "PACKED": packed,
        "num_warps": shape.warps,
        "num_stages": shape.stages,
    }

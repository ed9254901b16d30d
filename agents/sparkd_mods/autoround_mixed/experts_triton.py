"""Matrices of mixed widths on a GPU: one kernel for gate and up with their activation, one for a product.

A program takes one block of rows that belong to one expert, and some columns of its matrix. The width is read
from the table, so experts of all widths run side by side in one launch. Words are read once, coalesced along
the columns, and unpacked in registers.

A step takes 16 or 32 blocks of 32 values, value j of all of them at a time: 32 small products with one word
each. For a single row they are sums instead: tensor cores would only wait for the words, and the scale of a
block can be left to its end.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from sparkd_mods.autoround_mixed.experts_torch import Activation, Matrices
from sparkd_mods.autoround_mixed.packing import BLOCK

SINGLE = 64
"""Up to so many pairs of a token and an expert, each is a block of one row (docs/measurements.md)."""
SINGLE_TOKENS = 4
"""The same of a linear layer, whose one matrix every block would read again."""
CHUNK = 2048
"""Tokens at a time: what is kept between the kernels is top-k times as long as they are."""
STEP = 16
"""Blocks of 32 values in a step, at least: a product takes no fewer."""
SHAPES = {1: (32, 8, 2 * STEP), 16: (64, 4, STEP), 32: (64, 4, STEP)}
"""Rows of a block: the columns of a program, its warps, and its blocks of values in a step."""


def fits(matrix: Matrices) -> bool:
    """Whether its sizes are whole steps, so that nothing has to be masked; all of M3's are."""
    return matrix.rows % (STEP * BLOCK) == 0 and matrix.columns % 64 == 0


@triton.jit
def _value(before, word, i: tl.constexpr, j: tl.constexpr, BITS: tl.constexpr):
    """Value j of a block less its zero point, as an exact float32; word i is where it ends."""
    if j * BITS // 32 == i:
        bits = word >> (j * BITS - i * 32)
    else:
        # Two of 32 values of 3 bits begin in the word before. An arithmetic shift brings ones from above.
        own: tl.constexpr = 32 - j * BITS % 32
        bits = ((before >> (32 - own)) & ((1 << own) - 1)) | (word << own)
    # 2^23 + value: cheaper than a conversion, which runs at a fraction of the rate.
    lifted = (bits & ((1 << BITS) - 1)) | 0x4B000000
    return lifted.to(tl.float32, bitcast=True) - (8388608.0 + (1 << (BITS - 1)))


@triton.jit
def _product(
    acc,
    x,
    x_valid,
    words,
    scales,
    n,
    columns,
    steps,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    ONE: tl.constexpr,
    STEP: tl.constexpr,
):
    """Adds to acc x times one matrix. `x` points to each row's first value; ONE: there is one row."""
    for step in range(steps):
        block = step * STEP + tl.arange(0, STEP)
        scale = tl.load(scales + (block // GROUP)[:, None] * columns + n[None, :]).to(tl.float32)
        at = words + block[:, None] * (BITS * columns) + n[None, :]
        before = tl.zeros(scale.shape, tl.int32)
        part = tl.zeros(scale.shape, tl.float32)
        for i in tl.static_range(BITS):
            word = tl.load(at + i * columns)
            for j in tl.static_range(32):
                if (j * BITS + BITS - 1) // 32 == i:
                    value = _value(before, word, i, j, BITS)
                    if ONE:
                        part += tl.load(x + block * 32 + j).to(tl.float32)[:, None] * value
                    else:
                        some = tl.load(x[:, None] + block[None, :] * 32 + j, mask=x_valid[:, None], other=0.0)
                        acc = tl.dot(some, (value * scale).to(some.dtype), acc)
            before = word
        if ONE:
            acc += part * scale
    return acc


@triton.jit
def _of_width(
    bits, x, x_valid, words, scales, n, columns, rows,
    GROUP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """The product of x and one matrix: [COLUMNS] for one row, [ROWS, COLUMNS] for more."""
    ONE: tl.constexpr = ROWS == 1
    steps = rows // (32 * STEP)
    acc = tl.zeros((STEP if ONE else ROWS, COLUMNS), tl.float32)
    if bits == 2:
        acc = _product(acc, x, x_valid, words, scales, n, columns, steps, GROUP, 2, ONE, STEP)
    elif bits == 3:
        acc = _product(acc, x, x_valid, words, scales, n, columns, steps, GROUP, 3, ONE, STEP)
    elif bits == 4:
        acc = _product(acc, x, x_valid, words, scales, n, columns, steps, GROUP, 4, ONE, STEP)
    else:
        acc = _product(acc, x, x_valid, words, scales, n, columns, steps, GROUP, 8, ONE, STEP)
    if ONE:
        return tl.sum(acc, axis=0, keep_dims=True)
    else:  # noqa: RET505 - two branches of which one exists
        return acc


@triton.jit
def _pairs_of(pairs, ROWS: tl.constexpr):
    """The pairs of this program's block, -1 where it is not full."""
    return tl.load(pairs + tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)


@triton.jit
def gate_up(
    x, made, words, table, scales, pairs, experts, top_k, hidden, inner, alpha, beta, limit,
    GROUP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """made[pair] = activation(x[token] @ gate, x[token] @ up), of the pair's expert; COLUMNS: of both."""
    expert = tl.load(experts + tl.program_id(0)).to(tl.int64)
    if expert < 0:
        return
    columns = 2 * inner
    words += tl.multiple_of(tl.load(table + expert * 2 + 1), 64)  # each matrix is a multiple of 64 words
    scales += expert * (hidden // 32 // GROUP) * columns
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    pair = _pairs_of(pairs, ROWS)
    there = pair >= 0
    bits = tl.load(table + expert * 2)
    if ROWS == 1:
        row = x + (tl.load(pairs + tl.program_id(0)).to(tl.int64) // top_k) * hidden
    else:
        row = x + (pair // top_k) * hidden
    acc = _of_width(bits, row, there, words, scales, n, columns, hidden, GROUP, ROWS, COLUMNS, STEP)
    gate, up = tl.split(acc.reshape((ROWS, COLUMNS // 2, 2)))
    # As the reference's: both products are rounded before the activation.
    gate = tl.minimum(gate.to(made.dtype.element_ty).to(tl.float32), limit)
    up = tl.minimum(tl.maximum(up.to(made.dtype.element_ty).to(tl.float32), -limit), limit)
    result = gate / (1 + tl.exp(-alpha * gate)) * (up + beta)
    half = tl.program_id(1) * (COLUMNS // 2) + tl.arange(0, COLUMNS // 2)
    to = made + pair[:, None] * inner + half[None, :]
    tl.store(to, result.to(made.dtype.element_ty), mask=there[:, None])


@triton.jit
def product(
    x, out, words, table, scales, weights, pairs, experts, rows, columns,
    GROUP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
    WEIGHTED: tl.constexpr,
):  # fmt: skip
    """out[pair] = x[pair] @ the matrix of the pair's expert, times the pair's weight if WEIGHTED."""
    expert = tl.load(experts + tl.program_id(0)).to(tl.int64)
    if expert < 0:
        return
    words += tl.multiple_of(tl.load(table + expert * 2 + 1), 64)  # each matrix is a multiple of 64 words
    scales += expert * (rows // 32 // GROUP) * columns
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    pair = _pairs_of(pairs, ROWS)
    there = pair >= 0
    bits = tl.load(table + expert * 2)
    row = x + tl.load(pairs + tl.program_id(0)).to(tl.int64) * rows if ROWS == 1 else x + pair * rows
    acc = _of_width(bits, row, there, words, scales, n, columns, rows, GROUP, ROWS, COLUMNS, STEP)
    if WEIGHTED:
        acc = acc.to(out.dtype.element_ty).to(tl.float32)
        acc = acc * tl.load(weights + pair, mask=there, other=0.0)[:, None]
    to = out + pair[:, None] * columns + n[None, :]
    tl.store(to, acc.to(out.dtype.element_ty), mask=there[:, None])


@dataclass(frozen=True)
class Blocks:
    """Pairs sorted by expert and cut into blocks.

    pairs    int32 [blocks * rows]: pair numbers, -1 where a block is not full
    experts  int32 [blocks]: whose they are, -1 for a block without any
    """

    pairs: Any
    experts: Any
    rows: int

    @property
    def count(self) -> int:
        return int(self.experts.numel())


def blocks_of(local: Any, experts: int) -> Blocks:
    """`local` [pairs]: each pair's expert on this rank, below 0 for another's. Nothing waits for the GPU."""
    pairs = local.numel()
    if pairs <= SINGLE:
        return Blocks(torch.arange(pairs, dtype=torch.int32, device=local.device), local.to(torch.int32), 1)
    rows = 16 if pairs <= 16 * experts else 32
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
    return Blocks(found[:-1], torch.where(owner < experts, owner, -1).to(torch.int32), rows)


def run(x: Any, w13: Matrices, w2: Matrices, activation: Activation, weights: Any, local: Any) -> Any:
    """As `experts_torch.run`."""
    parts = zip(x.split(CHUNK), weights.split(CHUNK), local.split(CHUNK), strict=True)
    done = [_run(part.contiguous(), w13, w2, activation, some, mine) for part, some, mine in parts]
    return done[0] if len(done) == 1 else torch.cat(done)


def _run(x: Any, w13: Matrices, w2: Matrices, activation: Activation, weights: Any, local: Any) -> Any:
    tokens, top_k = local.shape
    blocks = blocks_of(local.flatten(), w13.table.size(0))
    hidden, inner = w13.rows, w2.rows
    made = torch.empty((tokens * top_k, inner), dtype=x.dtype, device=x.device)
    out = torch.zeros((tokens * top_k, hidden), dtype=x.dtype, device=x.device)
    columns, warps, step = _shape(blocks.rows, hidden, inner)
    gate_up[blocks.count, 2 * inner // columns](
        x, made, w13.words, w13.table, w13.scales, blocks.pairs, blocks.experts, top_k, hidden, inner,
        activation.alpha, activation.beta, activation.limit,
        GROUP=_group(w13), ROWS=blocks.rows, COLUMNS=columns, STEP=step, num_warps=warps, num_stages=1,
    )  # fmt: skip
    product[blocks.count, hidden // columns](
        made, out, w2.words, w2.table, w2.scales, weights.flatten().float(), blocks.pairs, blocks.experts,
        inner, hidden,
        GROUP=_group(w2), ROWS=blocks.rows, COLUMNS=columns, STEP=step, WEIGHTED=True,
        num_warps=warps, num_stages=1,
    )  # fmt: skip
    return out.view(tokens, top_k, hidden).sum(dim=1)


def linear(x: Any, matrix: Matrices) -> Any:
    """The product of x [tokens, in] and a matrix that stands alone in `matrix`."""
    tokens = x.size(0)
    rows = 1 if tokens <= SINGLE_TOKENS else 16 if tokens <= 16 else 32
    count = triton.cdiv(tokens, rows)
    numbers = torch.arange(count * rows, dtype=torch.int32, device=x.device)
    pairs = torch.where(numbers < tokens, numbers, -1)
    experts = torch.zeros(count, dtype=torch.int32, device=x.device)
    out = torch.empty((tokens, matrix.columns), dtype=x.dtype, device=x.device)
    columns, warps, step = _shape(rows, matrix.rows)
    product[count, matrix.columns // columns](
        x.contiguous(), out, matrix.words, matrix.table, matrix.scales, matrix.scales, pairs, experts,
        matrix.rows, matrix.columns,
        GROUP=_group(matrix), ROWS=rows, COLUMNS=columns, STEP=step, WEIGHTED=False,
        num_warps=warps, num_stages=1,
    )  # fmt: skip
    return out


def _shape(rows: int, *inputs: int) -> tuple[int, int, int]:
    """Columns, warps and step of programs with so many rows; every matrix has whole steps."""
    columns, warps, step = SHAPES[rows]
    return columns, warps, step if all(size % (step * BLOCK) == 0 for size in inputs) else STEP


def _group(matrix: Matrices) -> int:
    """Blocks that share a scale."""
    return int(matrix.rows // matrix.scales.size(1) // BLOCK)

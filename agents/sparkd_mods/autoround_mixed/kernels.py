"""The kernels: products of a few rows with matrices of mixed widths, which lie in the order of tiles.py.

A program takes one block of rows that belong to one expert, and some columns of its matrix. The width is read
from the table, so experts of all widths run side by side in one launch.

At a single token the words of a matrix are read once and never again, so everything is about keeping enough
of them under way: tiles of halfwords are copied to shared memory some steps ahead, and come from there in the
places where a tensor core wants its left operand. Two inputs are unpacked at a time into bf16, exactly, with
three instructions; the rows of x are the right operand, eight at least, of which a single row fills one. The
scale of a group is multiplied with the group's sum, in float32, so weights are never rounded.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

import triton
import triton.language as tl

from sparkd_mods.autoround_mixed import halfwords
from sparkd_mods.autoround_mixed.packing import WIDTHS

_LANES = tl.constexpr(halfwords.LANES)
_VALUE = tl.constexpr(
    {(bits, at): halfwords.value(bits, at) for bits in WIDTHS for at in range(halfwords.each(bits))}
)
_SIXTEENTH = tl.constexpr([halfwords.sixteenth(plane) for plane in range(3)])


@triton.jit
def _value(half, at: tl.constexpr, BITS: tl.constexpr, TYPE: tl.constexpr, PACKED: tl.constexpr):
    """The value at a position of each halfword, less its zero point. PACKED: by PTX, to bf16."""
    if PACKED:
        return tl.inline_asm_elementwise(
            _VALUE[(BITS, at)], "=r,r", [half], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    else:  # noqa: RET505 - two branches of which one exists
        return (((half >> (at * BITS)) & ((1 << BITS) - 1)) - (1 << (BITS - 1))).to(TYPE)


@triton.jit
def _sixteenth(top, half, plane: tl.constexpr, PACKED: tl.constexpr):
    """Adds a plane's top bit to the values that the top bits of all planes make."""
    if PACKED:
        return tl.inline_asm_elementwise(
            _SIXTEENTH[plane], "=r,r,r", [top, half], dtype=tl.int16, is_pure=True, pack=2
        )
    else:  # noqa: RET505 - two branches of which one exists
        return top | ((half >> (15 - plane)) & (1 << plane))


@triton.jit
def _scales(scales, group, n, columns, COUNT: tl.constexpr):
    """Those of COUNT groups."""
    if COUNT == 1:
        return (tl.load(scales + group * columns + n),)
    else:  # noqa: RET505 - two branches of which one exists
        return _scales(scales, group, n, columns, COUNT // 2) + _scales(
            scales, group + COUNT // 2, n, columns, COUNT // 2
        )


@triton.jit
def _times(value, x, there, inputs, part):
    """Adds the product of values and those inputs of each row."""
    return tl.dot(value, tl.load(x[None, :] + inputs[:, None], mask=there[None, :], other=0.0), part)


@triton.jit
def _product(
    x, there, halves, scales, n, columns, rows,
    BITS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    STAGES: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """[COLUMNS, ROWS], float32: one matrix's columns `n` times the rows that `x` points to the begin of."""
    EACH: tl.constexpr = 16 // BITS
    # At 8 bits half a step at a time: shared memory is as large as the largest needs.
    PLANES: tl.constexpr = 4 if BITS == 8 else BITS
    VALUES: tl.constexpr = 16 if BITS == 3 else PLANES * EACH
    GROUPS: tl.constexpr = VALUES * _LANES // GROUP
    TYPE: tl.constexpr = x.dtype.element_ty
    lane = tl.arange(0, _LANES)
    at = halves + n[:, None] * _LANES + lane[None, :]
    acc = tl.zeros((COLUMNS, ROWS), tl.float32)
    steps = rows // (VALUES * _LANES)
    scale = _scales(scales, 0, n, columns, GROUPS)
    for step in tl.range(0, steps, num_stages=STAGES):
        # Asked for one step ahead: nothing else hides how long they take.
        later = _scales(scales, tl.minimum(step + 1, steps - 1) * GROUPS, n, columns, GROUPS)
        part = tl.zeros((COLUMNS, ROWS), tl.float32)
        top = tl.zeros((COLUMNS, _LANES), tl.int16)
        for plane in tl.static_range(PLANES):
            half = tl.load(at + (step * PLANES + plane) * (columns * _LANES))
            for position in tl.static_range(EACH):
                value = _value(half, position, BITS, TYPE, PACKED)
                at_input = (step * VALUES + plane * EACH + position) * _LANES
                part = _times(value, x, there, lane + at_input, part)
                if (plane * EACH + position + 1) * _LANES % GROUP == 0:
                    acc += part * scale[(plane * EACH + position) * _LANES // GROUP].to(tl.float32)[:, None]
                    part = tl.zeros((COLUMNS, ROWS), tl.float32)
            if BITS == 3:
                top = _sixteenth(top, half, plane, PACKED)
        if BITS == 3:
            value = _value(top, 0, BITS, TYPE, PACKED)
            part = _times(value, x, there, lane + (step * VALUES + 15) * _LANES, part)
            acc += part * scale[GROUPS - 1].to(tl.float32)[:, None]
        scale = later
    return acc


@triton.jit
def _of_width(
    bits, x, there, halves, scales, n, columns, rows,
    GROUP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """As `_product`, of a width that is known on the GPU only."""
    acc = tl.zeros((COLUMNS, ROWS), tl.float32)
    if bits == 2:
        acc = _product(x, there, halves, scales, n, columns, rows, 2, GROUP, ROWS, COLUMNS, STAGES, PACKED)
    elif bits == 3:
        acc = _product(x, there, halves, scales, n, columns, rows, 3, GROUP, ROWS, COLUMNS, STAGES, PACKED)
    elif bits == 4:
        acc = _product(x, there, halves, scales, n, columns, rows, 4, GROUP, ROWS, COLUMNS, STAGES, PACKED)
    else:
        acc = _product(x, there, halves, scales, n, columns, rows, 8, GROUP, ROWS, COLUMNS, STAGES, PACKED)
    return acc


@triton.jit
def _pairs_of(pairs, ROWS: tl.constexpr, SINGLE: tl.constexpr):
    """The pairs of this program's block, -1 where it is not full. SINGLE: one pair a block, by its number."""
    r = tl.arange(0, ROWS)
    if SINGLE:
        return tl.where(r == 0, tl.program_id(1), -1).to(tl.int64)
    else:  # noqa: RET505 - two branches of which one exists
        return tl.load(pairs + tl.program_id(1) * ROWS + r).to(tl.int64)


@triton.jit
def gate_up(
    x, made, halves, table, scales, pairs, experts, top_k, hidden, inner, alpha, beta, limit,
    GROUP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
    SINGLE: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """made[pair] = activation(x[token] @ gate, x[token] @ up), of the pair's expert; COLUMNS: of both."""
    expert = tl.load(experts + tl.program_id(1)).to(tl.int64)
    if expert < 0:
        return
    columns = 2 * inner
    halves += tl.multiple_of(2 * tl.load(table + expert * 2 + 1), 64)  # a matrix is a multiple of 64 words
    scales += expert * (hidden // GROUP) * columns
    # Columns side by side in the grid: the programs of one multiprocessor then belong to different experts.
    n = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    pair = _pairs_of(pairs, ROWS, SINGLE)
    there = pair >= 0
    bits = tl.load(table + expert * 2)
    row = x + tl.maximum(pair, 0) // top_k * hidden
    acc = _of_width(
        bits, row, there, halves, scales, n, columns, hidden, GROUP, ROWS, COLUMNS, STAGES, PACKED
    )
    gate, up = tl.split(acc.reshape((COLUMNS // 2, 2, ROWS)).permute(0, 2, 1))
    # As the reference's: both products are rounded before the activation.
    gate = tl.minimum(gate.to(made.dtype.element_ty).to(tl.float32), limit)
    up = tl.minimum(tl.maximum(up.to(made.dtype.element_ty).to(tl.float32), -limit), limit)
    result = gate / (1 + tl.exp(-alpha * gate)) * (up + beta)
    half = tl.program_id(0) * (COLUMNS // 2) + tl.arange(0, COLUMNS // 2)
    to = made + pair[None, :] * inner + half[:, None]
    tl.store(to, result.to(made.dtype.element_ty), mask=there[None, :])


@triton.jit
def product(
    x, out, halves, table, scales, weights, pairs, experts, rows, columns,
    GROUP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
    SINGLE: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """out[pair] = x[pair] @ the matrix of the pair's expert, times the pair's weight.

    SINGLE: zeros for a pair whose expert is another rank's; else no block has such a pair.
    """
    expert = tl.load(experts + tl.program_id(1)).to(tl.int64)
    n = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    pair = _pairs_of(pairs, ROWS, SINGLE)
    there = pair >= 0
    to = out + pair[None, :] * columns + n[:, None]
    if expert < 0:
        if SINGLE:
            tl.store(to, tl.zeros((COLUMNS, ROWS), out.dtype.element_ty), mask=there[None, :])
        return
    halves += tl.multiple_of(2 * tl.load(table + expert * 2 + 1), 64)  # a matrix is a multiple of 64 words
    scales += expert * (rows // GROUP) * columns
    bits = tl.load(table + expert * 2)
    row = x + tl.maximum(pair, 0) * rows
    acc = _of_width(bits, row, there, halves, scales, n, columns, rows, GROUP, ROWS, COLUMNS, STAGES, PACKED)
    acc = acc.to(out.dtype.element_ty).to(tl.float32)
    acc = acc * tl.load(weights + pair, mask=there, other=0.0)[None, :]
    tl.store(to, acc.to(out.dtype.element_ty), mask=there[None, :])


@triton.jit
def linear(
    x, out, halves, scales, rows, columns, tokens,
    BITS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    STAGES: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """The product of x and a matrix that stands alone."""
    n = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    token = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    there = token < tokens
    row = x + token * rows
    acc = _product(row, there, halves, scales, n, columns, rows, BITS, GROUP, ROWS, COLUMNS, STAGES, PACKED)
    tl.store(out + token[None, :] * columns + n[:, None], acc.to(out.dtype.element_ty), mask=there[None, :])

"""Attention over the packed cache: paged, grouped heads, causal, with sliding windows and sinks.

A program takes a block of one request's query tokens, with all the heads that share a KV head, and walks over
a part of what these tokens see. Where one part would leave the GPU idle there are many, and a second kernel
adds them up.

Nothing is put back in order in the loop. A word holds four neighbouring values: value j of all words of a
head times value j of the query's words is one product, four of them the logits, and so with V and four parts
of the output. A product of a code and its scale is exact in float16 as multiples of 2^-24: codes are placed
there as they are, 2^14 too small, and that is put right in the logits and the output.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from dataclasses import dataclass
from typing import Any, Final

import torch
import triton
import triton.language as tl

from sparkd_mods.mimo_nvfp4_kv.layout import Slot

LOG2E: Final = 1.4426950408889634
MOST_ROWS: Final = 128
"""Rows of a program: query tokens times the heads that share a KV head."""
FEW_ROWS: Final = 32
"""Up to so many, several programs fit on a processor of the GPU (docs/measurements.md)."""
MOST_PARTS: Final = 256
SPLIT_TOKENS: Final = 16
"""Longest query of a batch that is split: a decode step, with its drafted tokens."""


@triton.jit
def _value(word, scale, J: tl.constexpr, FP8: tl.constexpr):
    """Value J of each word in float16, times 2^-14, or 2^-8 if FP8."""
    if FP8:
        byte = word >> (8 * J)
        bits = ((byte & 0x80) << 8) | ((byte & 0x7F) << 7)
        return bits.to(tl.int16).to(tl.float16, bitcast=True)
    else:  # noqa: RET505 - two branches of which one exists
        if J == 3:
            size = word >> 3
        else:
            size = word << (9 - 4 * J)
        bits = ((word << (12 - 4 * J)) & -32768) | (size & 0x0E00)
        return bits.to(tl.float16, bitcast=True) * scale


@triton.jit
def _within(word, FIRST: tl.constexpr, PIECE: tl.constexpr, WORDS: tl.constexpr):
    """Words of a piece: those beyond the head's, of which nothing is used, read its last one again."""
    if FIRST + PIECE <= WORDS:
        return word
    else:  # noqa: RET505 - two branches of which one exists
        return tl.minimum(word, WORDS - 1)


@triton.jit
def _scales(at, TILE: tl.constexpr, PIECE: tl.constexpr, FIRST: tl.constexpr, WORDS: tl.constexpr):
    """float16 [TILE, PIECE]: each word's scale. `at` [TILE]: each head's, four e4m3 numbers to an int32."""
    four = _within(FIRST // 16 + tl.arange(0, PIECE // 16), FIRST // 16, PIECE // 16, (WORDS + 15) // 16)
    byte = tl.load(at[:, None] + four[None, :])[:, :, None] >> (8 * tl.arange(0, 4))[None, None, :]
    # With the same digits a float16 is 2^8 too small.
    scale = ((byte & 0x7F) << 7).to(tl.int16).to(tl.float16, bitcast=True) * 256.0
    scale = scale.reshape((TILE, PIECE // 4, 1))
    return tl.broadcast_to(scale, (TILE, PIECE // 4, 4)).reshape((TILE, PIECE))


@triton.jit
def _values(
    words, scales, TILE: tl.constexpr, FIRST: tl.constexpr, PIECE: tl.constexpr, WORDS: tl.constexpr,
    FP8: tl.constexpr, FENCE: tl.constexpr = False,
):  # fmt: skip
    """A piece of a tile's heads, float16 [TILE, 4 * PIECE]; `words`, `scales` [TILE] point to each head's."""
    at = _within(FIRST + tl.arange(0, PIECE), FIRST, PIECE, WORDS)
    word = tl.load(words[:, None] + at[None, :])
    scale = 0.0
    if not FP8:
        scale = _scales(scales, TILE, PIECE, FIRST, WORDS)
    even = tl.join(_value(word, scale, 0, FP8), _value(word, scale, 2, FP8))
    odd = tl.join(_value(word, scale, 1, FP8), _value(word, scale, 3, FP8))
    made = tl.join(even, odd).reshape((TILE, 4 * PIECE))
    if FENCE:
        made = tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [made], dtype=tl.float16, is_pure=False, pack=2
        )
    return made


@triton.jit
def _query(at, factor, there, FIRST: tl.constexpr, PIECE: tl.constexpr, WIDTH: tl.constexpr):
    """A piece of each row's query, float16 [rows, 4 * PIECE]: 0 beyond the head, and for no row."""
    place = 4 * FIRST + tl.arange(0, 4 * PIECE)
    mask = there[:, None] & (place < WIDTH)[None, :]
    x = tl.load(at[:, None] + place[None, :], mask=mask, other=0.0)
    return (x.to(tl.float32) * factor).to(tl.float16)


@triton.jit
def _write(at, o, there, FIRST: tl.constexpr, PIECE: tl.constexpr, WIDTH: tl.constexpr):
    place = 4 * FIRST + tl.arange(0, 4 * PIECE)
    mask = there[:, None] & (place < WIDTH)[None, :]
    tl.store(at[:, None] + place[None, :], o.to(at.dtype.element_ty), mask=mask)


@triton.jit
def _request_of(starts, requests, program, TOKENS: tl.constexpr):
    """Whose block of TOKENS a program has: each request has room for a block more than it fills."""
    low = tl.zeros((), tl.int32)
    high = requests
    while low < high:
        middle = (low + high) // 2
        if tl.load(starts + middle) // TOKENS + middle <= program:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def _attention_kernel(
    out, out_largest, out_sum, query, words, scales, tables, starts, lengths, sinks, factor, requests,
    query_token, query_head, out_token, out_head, table_row, cache_block,
    HEAD_BYTES: tl.constexpr, TOKEN_BYTES: tl.constexpr, KEY_SCALES: tl.constexpr, VALUE_SCALES: tl.constexpr,
    KEY: tl.constexpr, VALUE: tl.constexpr, BLOCK: tl.constexpr, OF_HEAD: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr, WINDOW: tl.constexpr,
    SINKS: tl.constexpr, FP8: tl.constexpr, K0: tl.constexpr, K1: tl.constexpr,
    V0: tl.constexpr, V1: tl.constexpr, FENCE: tl.constexpr = False,
):  # fmt: skip
    """`words` and `scales` are the cache; `cache_block`, HEAD_BYTES, TOKEN_BYTES its strides.

    SPLIT: every program has a part of the context, and `out` a row for each.

    K0, K1: the words of a key, in a piece or two of a power of two each; V0, V1 those of a value.
    """
    TOKENS: tl.constexpr = ROWS // OF_HEAD
    WORD: tl.constexpr = 4 if FP8 else 2  # bytes
    program = tl.program_id(0)
    kv_head = tl.program_id(1)
    part = tl.program_id(2)
    parts = tl.num_programs(2)
    request = _request_of(starts, requests, program, TOKENS)
    begin = tl.load(starts + request)
    tokens = tl.load(starts + request + 1) - begin
    first = (program - begin // TOKENS - request) * TOKENS
    if first >= tokens:
        return
    length = tl.load(lengths + request)
    row = tl.arange(0, ROWS)
    token = first + row // OF_HEAD
    head = kv_head * OF_HEAD + row % OF_HEAD
    there = (token < tokens) & (row < TOKENS * OF_HEAD)
    at = length - tokens + token  # the position of each row

    # The tiles that any row of the block sees, and of them those of this part.
    last = length - tokens + tl.minimum(first + TOKENS, tokens) - 1
    low = 0
    if WINDOW > 0:
        low = tl.maximum(length - tokens + first - WINDOW + 1, 0) // TILE
    high = last // TILE + 1
    each = tl.cdiv(high - low, parts)
    low += part * each
    high = tl.minimum(high, low + each)

    query += (begin + token).to(tl.int64) * query_token + head * query_head
    q0 = _query(query, factor, there, 0, K0, KEY)
    if K1 > 0:
        q1 = _query(query, factor, there, K0, K1, KEY)

    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    if SINKS:
        if part == 0:
            largest = tl.load(sinks + head, mask=there, other=0.0).to(tl.float32) * 1.4426950408889634
            total = tl.full((ROWS,), 1.0, tl.float32)
    o0 = tl.zeros((ROWS, 4 * V0), tl.float32)
    if V1 > 0:
        o1 = tl.zeros((ROWS, 4 * V1), tl.float32)

    tables += request.to(tl.int64) * table_row
    for tile in range(low, high):
        n = tile * TILE + tl.arange(0, TILE)
        # Beyond the end the last token is read again, and masked.
        n_read = tl.minimum(n, length - 1)
        if BLOCK % TILE == 0:
            block = tl.load(tables + tile * TILE // BLOCK).to(tl.int64)
        else:
            block = tl.load(tables + n_read // BLOCK).to(tl.int64)
        place = n_read % BLOCK
        codes = words + block * (cache_block // WORD)
        codes += kv_head * (HEAD_BYTES // WORD) + place * (TOKEN_BYTES // WORD)
        s = scales + block * (cache_block // 4) + KEY_SCALES // 4
        s += kv_head * (HEAD_BYTES // 4) + place * (TOKEN_BYTES // 4)

        x = tl.dot(q0, _values(codes, s, TILE, 0, K0, KEY // 4, FP8, FENCE).trans())
        if K1 > 0:
            x = tl.dot(q1, _values(codes, s, TILE, K0, K1, KEY // 4, FP8, FENCE).trans(), x)
        x *= 256.0 if FP8 else 16384.0
        seen = n[None, :] <= at[:, None]
        if WINDOW > 0:
            seen &= n[None, :] > at[:, None] - WINDOW
        x = tl.where(seen, x, float("-inf"))

        above = tl.maximum(largest, tl.max(x, axis=1))
        base = tl.where(above == float("-inf"), 0.0, above)  # a row that has seen nothing yet
        p = tl.exp2(x - base[:, None])
        shrink = tl.exp2(largest - base)
        total = total * shrink + tl.sum(p, axis=1)
        largest = above
        p = p.to(tl.float16)
        codes += KEY // 4
        s += (VALUE_SCALES - KEY_SCALES) // 4
        o0 = tl.dot(p, _values(codes, s, TILE, 0, V0, VALUE // 4, FP8), o0 * shrink[:, None])
        if V1 > 0:
            o1 = tl.dot(p, _values(codes, s, TILE, V0, V1, VALUE // 4, FP8), o1 * shrink[:, None])

    unit = 256.0 if FP8 else 16384.0
    if SPLIT:
        unit = tl.full((ROWS,), unit, tl.float32)
        # [token, head, part]
        index = ((begin + token).to(tl.int64) * (tl.num_programs(1) * OF_HEAD) + head) * parts + part
        tl.store(out_largest + index, largest, mask=there)
        tl.store(out_sum + index, total, mask=there)
    else:
        unit = unit / tl.where(total > 0.0, total, 1.0)
    out += (begin + token).to(tl.int64) * out_token + head * out_head
    if SPLIT:
        out += part * VALUE
    _write(out, o0 * unit[:, None], there, 0, V0, VALUE)
    if V1 > 0:
        _write(out, o1 * unit[:, None], there, V0, V1, VALUE)


@triton.jit
def _reduce_kernel(
    out, made, largest, sums, starts, requests, parts, out_token, out_head,
    PARTS: tl.constexpr, VALUE: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """One token and head a program: the weighted mean of its parts, of which one may have seen nothing."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    if token >= tl.load(starts + requests):
        return  # a padded token
    row = token * tl.num_programs(1) + head
    part = tl.arange(0, PARTS)
    place = tl.arange(0, PADDED)
    m = tl.load(largest + row * parts + part, mask=part < parts, other=float("-inf"))
    weight = tl.exp2(m - tl.max(m, axis=0))
    total = tl.sum(tl.load(sums + row * parts + part, mask=part < parts, other=0.0) * weight, axis=0)
    mask = (weight > 0.0)[:, None] & (place < VALUE)[None, :]
    x = tl.load(made + (row * parts + part)[:, None] * VALUE + place[None, :], mask=mask, other=0.0)
    x = tl.sum(x * weight[:, None], axis=0) / tl.where(total > 0.0, total, 1.0)
    tl.store(
        out + token * out_token + head * out_head + place, x.to(out.dtype.element_ty), mask=place < VALUE
    )


@dataclass(frozen=True)
class Batch:
    """What a step attends to.

    tables   int32 [requests, …]: each request's blocks
    starts   int32 [requests + 1]: where its query tokens begin
    lengths  int32 [requests]: its tokens in the cache, the new ones among them
    longest  the most query tokens that a request has
    """

    tables: Any
    starts: Any
    lengths: Any
    longest: int


@dataclass(frozen=True)
class Shape:
    """How a launch is cut: rows of a program, tokens of the cache in a step, parts of a context."""

    rows: int
    tile: int
    parts: int
    warps: int
    stages: int


def shape_for(batch: Batch, kv_heads: int, of_head: int, window: int | None, processors: int) -> Shape:
    """Decode steps, with their drafted tokens, fill the GPU by parts; nothing here waits for it."""
    rows = min(MOST_ROWS, triton.next_power_of_2(max(16, of_head * batch.longest)))
    rows = max(rows, triton.next_power_of_2(of_head))
    few = rows <= FEW_ROWS
    parts = 1
    if batch.longest <= SPLIT_TOKENS and window is None:
        blocks = triton.cdiv(batch.longest, rows // of_head)
        programs = batch.lengths.shape[0] * blocks * kv_heads
        parts = min(MOST_PARTS, max(1, (3 if few else 1) * processors // programs))
    return Shape(rows, 64, parts, 4 if few else 8, 2)


def attend(
    query: Any, cache: Any, value_width: int, out: Any, batch: Batch, scale: float,
    window: int | None, sinks: Any, shape: Shape, *, fp8: bool = False,
) -> None:  # fmt: skip
    """Fills out [tokens, heads, value width] from query [tokens, heads, key width] over `cache`.

    `cache`: uint8 [blocks, kv heads, block, bytes], with any strides that 4 divides, and 1 for its bytes.
    `window`: how many tokens each sees, itself among them. `sinks` [heads] or None. `fp8`: a cache of e4m3
    values, all of the keys' before the values', which is there to be compared with.
    """
    tokens, heads, key_width = query.shape
    slot = Slot(key_width, value_width)
    kv_heads, block = cache.shape[1], cache.shape[2]
    of_head = heads // kv_heads
    programs = tokens // (shape.rows // of_head) + batch.lengths.shape[0]
    parts = shape.parts
    made, largest, sums = out, out, out
    if parts > 1:
        made = torch.empty((tokens, heads, parts * value_width), dtype=torch.float32, device=out.device)
        largest = torch.empty((tokens, heads, parts), dtype=torch.float32, device=out.device)
        sums = torch.empty_like(largest)
    k0, k1 = pieces(key_width)
    v0, v1 = pieces(value_width)
    _attention_kernel[programs, kv_heads, parts](
        made, largest, sums, query, cache.view(torch.int32 if fp8 else torch.int16), cache.view(torch.int32),
        batch.tables, batch.starts, batch.lengths, query if sinks is None else sinks,
        scale * LOG2E, batch.lengths.shape[0],
        query.stride(0), query.stride(1), made.stride(0), made.stride(1), batch.tables.stride(0),
        cache.stride(0), HEAD_BYTES=cache.stride(1), TOKEN_BYTES=cache.stride(2),
        KEY_SCALES=slot.key_scales, VALUE_SCALES=slot.value_scales,
        KEY=key_width, VALUE=value_width, BLOCK=block, OF_HEAD=of_head,
        ROWS=shape.rows, TILE=shape.tile, SPLIT=parts > 1, WINDOW=window or 0,
        SINKS=sinks is not None, FP8=fp8, K0=k0, K1=k1, V0=v0, V1=v1, FENCE=query.is_cuda and shape.rows > 16,
        num_warps=shape.warps, num_stages=shape.stages,
    )  # fmt: skip
    if parts > 1:
        _reduce_kernel[tokens, heads](
            out, made, largest, sums, batch.starts, batch.lengths.shape[0], parts,
            out.stride(0), out.stride(1), PARTS=triton.next_power_of_2(parts), VALUE=value_width,
            PADDED=triton.next_power_of_2(value_width), num_warps=8,
        )  # fmt: skip


def pieces(width: int) -> tuple[int, int]:
    """The words of a head in one or two powers of two, each at least 16, as a product wants; 0 for none."""
    words = width // 4
    first = max(16, 1 << (words.bit_length() - 1))
    rest = words - first
    return first, max(16, triton.next_power_of_2(rest)) if rest > 0 else 0

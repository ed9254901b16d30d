"""New keys and values into the cache: 16 values at a time become 8 bytes of codes and one of scale."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from typing import Any

import triton
import triton.language as tl

from sparkd_mods.mimo_nvfp4_kv.layout import GROUP, Slot


@triton.jit
def _codes(x, scale):
    """e2m1 of x / scale; half-way goes to the even code."""
    quotient = tl.div_rn(x, scale)
    size = tl.abs(quotient)
    code = (size > 0.25).to(tl.int32) + (size >= 0.75).to(tl.int32) + (size > 1.25).to(tl.int32)
    code += (size >= 1.75).to(tl.int32) + (size > 2.5).to(tl.int32) + (size >= 3.5).to(tl.int32)
    code += (size > 5.0).to(tl.int32)
    return code + (quotient < 0).to(tl.int32) * 8


@triton.jit
def _e4m3(x):
    """The byte of the nearest e4m3 to x in [2^-9, 448]: half-way goes to the even one."""
    bits = x.to(tl.int32, bitcast=True)
    # The exponent and three bits of the fraction; 120 is the difference of the biases.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2^-6 it counts in steps of 2^-9: adding 2^14 leaves no smaller ones.
    small = (x + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    return tl.where(x < 0.015625, small, normal)


@triton.jit
def _scale_of(byte):
    """float32 of an e4m3 byte: as the float16 with the same digits it is 2^8 too small."""
    return (byte << 7).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 256.0


@triton.jit
def _store(x, to_codes, to_scales, GROUPS: tl.constexpr, PADDED: tl.constexpr):
    """One head's 16 * GROUPS values from x."""
    group = tl.arange(0, PADDED)
    pair = tl.arange(0, 8)
    there = group < GROUPS
    both = there[:, None] & (pair >= 0)[None, :]
    at = x + group[:, None] * 16 + pair[None, :] * 2
    even = tl.load(at, mask=both, other=0.0).to(tl.float32)
    odd = tl.load(at + 1, mask=both, other=0.0).to(tl.float32)
    largest = tl.max(tl.maximum(tl.abs(even), tl.abs(odd)), axis=1)
    byte = _e4m3(tl.minimum(tl.maximum(tl.div_rn(largest, 6.0), 0.001953125), 448.0))
    scale = _scale_of(byte)[:, None]
    codes = _codes(even, scale) | (_codes(odd, scale) << 4)
    tl.store(to_codes + group[:, None] * 8 + pair[None, :], codes.to(tl.uint8), mask=both)
    tl.store(to_scales + group, byte.to(tl.uint8), mask=there)


@triton.jit
def _store_kernel(
    key, value, cache, slots, key_token, key_head, value_token, value_head,
    cache_block, cache_head, cache_token,
    BLOCK: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr,
    VALUE_CODES: tl.constexpr, KEY_SCALES: tl.constexpr, VALUE_SCALES: tl.constexpr,
    KEY_PADDED: tl.constexpr, VALUE_PADDED: tl.constexpr,
):  # fmt: skip
    """One token and KV head a program; `cache` in bytes, its strides too."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slots + token).to(tl.int64)
    if slot < 0:
        return  # a padded token
    to = cache + (slot // BLOCK) * cache_block + (slot % BLOCK) * cache_token + head * cache_head
    _store(key + token * key_token + head * key_head, to, to + KEY_SCALES, KEY // 16, KEY_PADDED)
    value += token * value_token + head * value_head
    _store(value, to + VALUE_CODES, to + VALUE_SCALES, VALUE // 16, VALUE_PADDED)


def store(key: Any, value: Any, cache: Any, slots: Any) -> None:
    """Write key and value [tokens, heads, …] to `slots` [tokens] of cache [blocks, heads, block, bytes].

    `cache` is uint8, with any strides but of its last dimension. A slot is block * block size + place; one
    below 0 is none. There may be more tokens than slots.
    """
    slot = Slot(key.shape[-1], value.shape[-1])
    _store_kernel[slots.shape[0], key.shape[1]](
        key, value, cache, slots,
        key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        cache.stride(0), cache.stride(1), cache.stride(2),
        BLOCK=cache.shape[2], KEY=slot.key, VALUE=slot.value,
        VALUE_CODES=slot.value_codes, KEY_SCALES=slot.key_scales, VALUE_SCALES=slot.value_scales,
        KEY_PADDED=triton.next_power_of_2(slot.key // GROUP),
        VALUE_PADDED=triton.next_power_of_2(slot.value // GROUP),
        num_warps=1,
    )  # fmt: skip

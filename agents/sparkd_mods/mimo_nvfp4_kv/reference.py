"""The cache and attention over it in plain torch: what the kernels are compared with."""

from itertools import pairwise
from typing import Any

from sparkd_mods.mimo_nvfp4_kv.layout import CODES, GROUP, LARGEST, Slot


def pack(key: Any, value: Any) -> Any:
    """uint8 [..., slot.size] of key [..., slot.key] and value [..., slot.value]."""
    import torch

    slot = Slot(key.shape[-1], value.shape[-1])
    made = torch.zeros((*key.shape[:-1], slot.size), dtype=torch.uint8, device=key.device)
    key_codes, value_codes, key_scales, value_scales = _parts(made, slot)
    key_codes[:], key_scales[:] = quantise(key)
    value_codes[:], value_scales[:] = quantise(value)
    return made


def unpack(packed: Any, slot: Slot) -> tuple[Any, Any]:
    """Key and value in float64."""
    key, value, key_scales, value_scales = _parts(packed, slot)
    return dequantise(key, key_scales), dequantise(value, value_scales)


def _parts(packed: Any, slot: Slot) -> tuple[Any, ...]:
    """Views of the codes of key and value, and of their scales."""
    begins = 0, slot.value_codes, slot.key_scales, slot.value_scales
    sizes = slot.key // 2, slot.value // 2, slot.key // GROUP, slot.value // GROUP
    return tuple(packed[..., begin : begin + size] for begin, size in zip(begins, sizes, strict=True))


def quantise(x: Any) -> tuple[Any, Any]:
    """Codes and scales, both uint8, of x [..., width].

    A scale is a sixth of the largest of its 16, to the nearest e4m3 and never 0, so that no quotient is far
    above 6; a quotient half-way between two codes goes to the even one.
    """
    import torch

    groups = x.float().unflatten(-1, (-1, GROUP))
    scales = _e4m3(groups.abs().amax(-1) / LARGEST)
    quotients = groups / scale_of(scales).float()[..., None]
    size = quotients.abs()
    codes = torch.zeros_like(size, dtype=torch.uint8)
    for at, (low, high) in enumerate(pairwise(CODES)):
        middle = (low + high) / 2
        codes += size > middle if at % 2 == 0 else size >= middle
    codes += (quotients < 0).to(torch.uint8) * 8
    pairs = codes.flatten(-2).unflatten(-1, (-1, 2))
    return pairs[..., 0] | pairs[..., 1] << 4, scales


def dequantise(codes: Any, scales: Any) -> Any:
    import torch

    nibbles = torch.stack([codes & 15, codes >> 4], -1).flatten(-2)
    sizes = torch.tensor(CODES, dtype=torch.float64, device=codes.device)[(nibbles & 7).long()]
    signed = torch.where(nibbles > 7, -sizes, sizes)
    return (signed.unflatten(-1, (-1, GROUP)) * scale_of(scales)[..., None]).flatten(-2)


def scale_of(scales: Any) -> Any:
    """float64 of e4m3 bytes without sign."""
    import torch

    return scales.view(torch.float8_e4m3fn).double()


def _e4m3(x: Any) -> Any:
    """The byte of the nearest e4m3 to x >= 0, not below its smallest nor above its largest."""
    import torch

    return x.clamp(2.0**-9, 448.0).to(torch.float8_e4m3fn).view(torch.uint8)


def attend(  # noqa: PLR0917 - as the kernel's
    query: Any, key: Any, value: Any, scale: float, window: int | None, sinks: Any
) -> Any:
    """One request in float64: its last tokens' query [tokens, heads, …] over key, value [length, heads, …].

    A token sees itself and what is before it, with a window that many of them in all. `sinks` [heads]: a
    logit of each head that takes a share and gives nothing.
    """
    import torch

    tokens, heads = query.shape[:2]
    length, kv_heads = key.shape[:2]
    of_head = heads // kv_heads
    q = query.double().view(tokens, kv_heads, of_head, -1)
    logits = torch.einsum("tkgd,lkd->kgtl", q, key.double()) * scale
    at = torch.arange(length - tokens, length, device=query.device)[:, None]
    before = torch.arange(length, device=query.device)[None, :]
    seen = before <= at
    if window is not None:
        seen &= before > at - window
    logits = logits.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        own = sinks.double().view(kv_heads, of_head, 1, 1).expand(-1, -1, tokens, 1)
        logits = torch.cat([logits, own], -1)
    shares = logits.softmax(-1)[..., :length]
    return torch.einsum("kgtl,lkd->tkgd", shares, value.double()).reshape(tokens, heads, -1)

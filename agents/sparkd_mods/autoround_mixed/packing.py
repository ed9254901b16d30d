"""GPTQ v1 packing, as AutoRound exports it: how values lie in 32-bit words, and what they stand for.

words   int32 [in * bits / 32, out]: 32 values along `in` take `bits` words, lowest bits first; with 3 bits
        two of them straddle words
zeros   int32 [in / group, out * bits / 32]: the same along `out`, each one below the zero point
scales  [in / group, out]

    weight = (value - (zero + 1)) * scale
"""

from typing import Any

WIDTHS = (2, 3, 4, 8)
BLOCK = 32
"""Values that take a whole number of words at every width."""


def packed_rows(rows: int, bits: int) -> int:
    """The rows of words that hold so many rows of values."""
    return rows * bits // BLOCK


def unpack(words: Any, bits: int) -> Any:
    """[rows * bits / 32, columns] -> the values as uint8 [rows, columns]."""
    import torch

    blocks = words.unflatten(0, (-1, bits))
    values = []
    for position in range(BLOCK):
        word, shift = divmod(position * bits, 32)
        value = blocks[:, word] >> shift
        if shift + bits > 32:
            own = 32 - shift
            value = (value & ((1 << own) - 1)) | (blocks[:, word + 1] << own)
        values.append((value & ((1 << bits) - 1)).to(torch.uint8))
    return torch.stack(values, dim=1).flatten(0, 1)


def middle(bits: int) -> int:
    """The zero point of a symmetric quantisation."""
    return int(1 << (bits - 1))


def is_symmetric(zeros: Any, bits: int) -> bool:
    """Whether packed zeros all are the middle one: then none of them has to be kept."""
    import torch

    stored = sum((middle(bits) - 1) << (position * bits) for position in range(BLOCK))
    words = [(stored >> (32 * word)) & 0xFFFFFFFF for word in range(bits)]
    signed = [word - (1 << 32) if word >> 31 else word for word in words]
    pattern = torch.tensor(signed, dtype=torch.int32, device=zeros.device)
    return zeros.size(1) % bits == 0 and bool((zeros.unflatten(1, (-1, bits)) == pattern).all())


def dequantise(words: Any, scales: Any, bits: int, dtype: Any, zeros: Any = None) -> Any:
    """The weights as [in, out]. `zeros`: the packed ones; a symmetric quantisation needs none."""
    points = None if zeros is None else unpack(zeros.T, bits).T.int() + 1
    return scaled(unpack(words, bits), scales, bits, dtype, points)


def scaled(values: Any, scales: Any, bits: int, dtype: Any, points: Any = None) -> Any:
    """Values less their zero points (of each group; the middle ones), times their scales."""
    group = values.size(0) // scales.size(0)
    less = middle(bits) if points is None else points.repeat_interleave(group, dim=0)
    return ((values.int() - less).float() * scales.float().repeat_interleave(group, dim=0)).to(dtype)

"""Matrices in the order of the kernels (see halfwords), in torch: there and back."""

from typing import Any

from sparkd_mods.autoround_mixed.halfwords import LANES, STEP, each
from sparkd_mods.autoround_mixed.packing import unpack

COLUMNS = 64
"""Outputs that a program of the kernels has; a matrix has a multiple of them."""


def fits(rows: int, columns: int, group: int) -> bool:
    """Whether a matrix is whole tiles, so that nothing has to be masked; all of M3's are."""
    return rows % STEP == 0 and columns % COLUMNS == 0 and group % LANES == 0 and STEP // 2 % group == 0


def tiled(words: Any, bits: int) -> Any:
    """GPTQ's words [rows * bits / 32, columns] in the other order, as as many words."""
    import torch

    columns = words.size(1)
    values = unpack(words, bits).view(-1, 16, LANES, columns)
    planes = []
    for plane in range(bits):
        held = torch.zeros(values[:, 0].shape, dtype=torch.int32, device=words.device)
        for position in range(each(bits)):
            held |= values[:, plane * each(bits) + position].int() << (position * bits)
        if bits == 3:
            held |= ((values[:, 15].int() >> plane) & 1) << 15
        planes.append(held.to(torch.int16).transpose(1, 2))
    return torch.stack(planes, dim=1).contiguous().view(torch.int32).view(words.shape)


def values_of(words: Any, bits: int) -> Any:
    """The reverse: the values as uint8 [rows, columns]."""
    import torch

    columns = words.size(1)
    planes = words.contiguous().view(torch.int16).view(-1, bits, columns, LANES).int() & 0xFFFF
    values = [
        (planes[:, position // each(bits)] >> (position % each(bits) * bits)) & ((1 << bits) - 1)
        for position in range(bits * each(bits))
    ]
    if bits == 3:
        values.append(sum(((planes[:, plane] >> 15) & 1) << plane for plane in range(3)))
    return torch.stack(values, dim=1).to(torch.uint8).transpose(2, 3).flatten(0, 2)

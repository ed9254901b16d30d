"""The kernels of autoround-mixed in Triton's interpreter against plain torch.

A program, since the interpreter is chosen for a whole process, before Triton is imported. For single rows,
for blocks of them and for a matrix alone, at every width, in float16: the interpreter knows neither bf16 nor
PTX, so values are unpacked by other lines than on a GPU (those: tests/unit/mods/test_minimax_halfwords.py).
"""

import json

import torch

from sparkd_mods.autoround_mixed import experts_torch, experts_triton
from sparkd_mods.autoround_mixed.experts_torch import Activation, Matrices
from sparkd_mods.autoround_mixed.packing import WIDTHS, packed_rows

SIZE = 512


def matrices(generator: torch.Generator, columns: int) -> Matrices:
    """Tiled; their words are any, and so are their values."""
    sizes = [packed_rows(SIZE, bits) * columns for bits in WIDTHS]
    begins = [sum(sizes[:number]) for number in range(len(sizes))]
    words = torch.randint(-(1 << 31), (1 << 31) - 1, (sum(sizes),), dtype=torch.int32, generator=generator)
    scales = torch.rand((len(WIDTHS), SIZE // 128, columns), generator=generator) / 200
    table = torch.tensor(list(zip(WIDTHS, begins, strict=True)))
    return Matrices(words, table, scales.half(), SIZE, columns, tiled=True)


def off(wanted: torch.Tensor, got: torch.Tensor) -> float:
    return float((wanted.float() - got.float()).abs().max() / wanted.float().abs().max())


def main() -> None:
    generator = torch.Generator().manual_seed(5)
    w13, w2 = matrices(generator, 2 * SIZE), matrices(generator, SIZE)
    experts_triton.SINGLE = 4
    found = []
    for tokens in (1, 2):
        x = torch.randn((tokens, SIZE), generator=generator).half() / 4
        # Four of five experts are here: all widths are met.
        local = torch.rand((tokens, 5), generator=generator).topk(4).indices
        local = torch.where(local < 4, local, -1)
        weights = torch.rand((tokens, 4), generator=generator)
        arguments = x, w13, w2, Activation(1.702, 1.0, 7.0), weights, local
        found.append(
            {"tokens": tokens, "off": off(experts_torch.run(*arguments), experts_triton.run(*arguments))}
        )
    x = torch.randn((9, SIZE), generator=generator).half() / 4
    for place, bits in enumerate(WIDTHS):
        one = Matrices(
            w2.packed(place)[0].flatten(), w2.table[:1], w2.scales[place, None], SIZE, SIZE, tiled=True
        )
        one.table.copy_(torch.tensor([[bits, 0]]))
        for tokens in (2, 9):
            wanted = x[:tokens] @ one.dense(0, x.dtype)
            found.append({"linear": bits, "off": off(wanted, experts_triton.linear(x[:tokens], one, bits))})
    print(json.dumps(found))  # noqa: T201 - the answer


if __name__ == "__main__":
    main()

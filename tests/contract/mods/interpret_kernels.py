"""Both kernels of autoround-mixed in Triton's interpreter against plain torch.

A program, since the interpreter is chosen for a whole process, before Triton is imported. For single rows and
for blocks of them, at every width, in float16: the interpreter knows no bf16.
"""

import json

import torch

from sparkd_mods.autoround_mixed import experts_torch, experts_triton
from sparkd_mods.autoround_mixed.experts_torch import Activation, Matrices
from sparkd_mods.autoround_mixed.packing import WIDTHS, packed_rows

SIZE = 512


def matrices(generator: torch.Generator, columns: int) -> Matrices:
    sizes = [packed_rows(SIZE, bits) * columns for bits in WIDTHS]
    begins = [sum(sizes[:number]) for number in range(len(sizes))]
    words = torch.randint(-(1 << 31), (1 << 31) - 1, (sum(sizes),), dtype=torch.int32, generator=generator)
    scales = torch.rand((len(WIDTHS), SIZE // 128, columns), generator=generator) / 200
    table = torch.tensor(list(zip(WIDTHS, begins, strict=True)))
    return Matrices(words, table, scales.half(), SIZE, columns)


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
    single = Matrices(w2.words, w2.table[1:2], w2.scales[1:2], SIZE, SIZE)
    found.append({"linear": True, "off": off(x @ single.dense(0, x.dtype), experts_triton.linear(x, single))})
    print(json.dumps(found))  # noqa: T201 - the answer


if __name__ == "__main__":
    main()

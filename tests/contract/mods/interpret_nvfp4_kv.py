"""The kernels of mimo-nvfp4-kv in Triton's interpreter against plain torch.

A program, since the interpreter is chosen for a whole process, before Triton is imported. In float16: the
interpreter knows no bf16.
"""

import json
from dataclasses import dataclass

import torch

from sparkd_mods.mimo_nvfp4_kv import reference
from sparkd_mods.mimo_nvfp4_kv.attention_triton import Batch, Shape, attend
from sparkd_mods.mimo_nvfp4_kv.layout import Slot
from sparkd_mods.mimo_nvfp4_kv.store_triton import store

MIMO = Slot(192, 128)


@dataclass(frozen=True)
class Case:
    lengths: tuple[int, ...]
    queries: tuple[int, ...]
    shape: Shape
    block: int = 16
    kv_heads: int = 2
    of_head: int = 4
    window: int | None = None
    sinks: bool = False
    slot: Slot = MIMO
    between: int = 0
    """Bytes of other layers between two blocks."""


CASES = (
    Case((70,), (1,), Shape(16, 32, 2, 4, 2)),
    Case((70, 33), (3, 33), Shape(16, 32, 1, 4, 2), window=20, sinks=True),
    Case((150, 40), (8, 1), Shape(64, 32, 3, 4, 2), block=48, kv_heads=1, of_head=8, sinks=True, between=320),
    Case((100, 5), (2, 2), Shape(16, 32, 1, 4, 2), block=64, of_head=3, slot=Slot(96, 80)),
    Case((90,), (4,), Shape(16, 32, 2, 4, 2), block=64, kv_heads=1, of_head=3, window=30, slot=Slot(64, 256)),
)


def check(case: Case) -> dict[str, object]:
    counts = [-(-length // case.block) for length in case.lengths]
    blocks = sum(counts) + 2
    page = case.block * case.kv_heads * case.slot.size
    raw = torch.zeros(blocks * (page + case.between), dtype=torch.uint8)
    size = blocks, case.kv_heads, case.block, case.slot.size
    strides = page + case.between, case.slot.size, case.kv_heads * case.slot.size, 1
    cache = raw.as_strided(size, strides)
    others = raw.as_strided((blocks, case.between), (strides[0], 1), page)
    others.fill_(0x5A)
    tables = torch.zeros((len(counts), max(counts)), dtype=torch.int32)
    order = torch.randperm(blocks)[: sum(counts)].int().split(counts)
    heads = case.kv_heads * case.of_head
    sinks = torch.randn(heads) if case.sinks else None
    same, wanted, queries = True, [], []
    for row, own, length, tokens in zip(tables, order, case.lengths, case.queries, strict=True):
        row[: own.numel()] = own
        place = torch.arange(length)
        key = torch.randn((length, case.kv_heads, case.slot.key)).half()
        value = torch.randn((length, case.kv_heads, case.slot.value)).half()
        slots = row[place // case.block].long() * case.block + place % case.block
        # The last token is padding, with something in it.
        slots = torch.cat([slots, torch.tensor([-1])])
        store(torch.cat([key, key[:1]]), torch.cat([value, value[:1]]), cache, slots)
        packed = reference.pack(key, value)
        held = cache.transpose(1, 2)[slots[:-1] // case.block, slots[:-1] % case.block]
        same &= torch.equal(held, packed)
        queries.append(torch.randn((tokens, heads, case.slot.key)).half())
        scale = case.slot.key**-0.5
        read = reference.unpack(packed, case.slot)
        wanted.append(reference.attend(queries[-1], *read, scale, case.window, sinks))
    query, right = torch.cat(queries), torch.cat(wanted)
    out = torch.zeros((query.shape[0], heads, case.slot.value), dtype=query.dtype)
    starts = torch.tensor([0, *torch.tensor(case.queries).cumsum(0)], dtype=torch.int32)
    batch = Batch(tables, starts, torch.tensor(case.lengths, dtype=torch.int32), max(case.queries))
    attend(query, cache, case.slot.value, out, batch, case.slot.key**-0.5, case.window, sinks, case.shape)
    return {
        "same bytes": same and bool((others == 0x5A).all()),
        "off": float((out.double() - right).abs().max() / right.abs().max()),
    }


def main() -> None:
    torch.manual_seed(6)
    print(json.dumps([check(case) for case in CASES]))  # noqa: T201 - the answer


if __name__ == "__main__":
    main()

"""C4b on a GPU: the kernels of the mod `mimo-nvfp4-kv` at MiMo-V2.5's real shapes, no vLLM needed.

    PYTHONPATH=agents python benchmarks/nvfp4_kv.py [PEAK_GB_PER_S]

Four parts. What is stored, byte by byte against plain torch. Attention over the packed cache against float64
over the same bytes, for contexts to 200,000 tokens, several blocks, windows, sinks, query lengths, groups of
heads and strides (exit code 1 if any is off), with what 4 bits cost beside it: the same in float64 over the
keys and values as they were. Shared memory, registers and spills of every kernel that ran, and shared memory
for the GB10. Then the time of one layer's attention in a decode step of one request, beside the same kernel
over e4m3 values, and the bytes that it reads in a second as a share of the peak (4,800 GB/s of an H200 unless
given).
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sparkd_mods.mimo_nvfp4_kv import attention_triton, reference, store_triton
from sparkd_mods.mimo_nvfp4_kv.attention_triton import Batch, Shape, attend, pieces, shape_for
from sparkd_mods.mimo_nvfp4_kv.layout import Slot

SLOT = Slot(192, 128)
HEADS = 32
"""Of a rank of two."""
GLOBAL, SLIDING = 2, 4
"""KV heads of such a rank, in layers with and without full attention."""
WINDOW = 128
GB10_SHARED = 101_376
"""Bytes of shared memory that a block may have on GB10."""
TOLERANCE = 0.004
"""Of the largest value: bf16 keeps 8 bits, and float16 shares are added up in another order."""
LENGTHS = (2_000, 8_000, 32_000, 100_000, 200_000)


@dataclass(frozen=True)
class Case:
    lengths: tuple[int, ...]
    queries: tuple[int, ...]
    block: int
    kv_heads: int = GLOBAL
    heads: int = HEADS
    window: int | None = None
    sinks: bool = False
    packed: bool = False
    """Other layers' pages lie between this one's blocks."""
    slot: Slot = SLOT


CASES = (
    Case((200_000,), (1,), 64),
    Case((200_000,), (8,), 64),
    Case((100_000, 3, 777), (8, 1, 5), 16),
    Case((33_000, 5_000), (8, 8), 128, packed=True),
    Case((2_049, 1, 130), (1, 1, 1), 48, kv_heads=1, heads=8),
    Case((1_000, 70), (8, 8), 64, kv_heads=SLIDING, window=WINDOW, sinks=True),
    Case((200_000, 90), (1, 8), 16, kv_heads=SLIDING, window=WINDOW, sinks=True, packed=True),
    Case((9_000,), (4,), 64, sinks=True),
    Case((5_000, 300), (1_000, 300), 64),
    Case((4_100, 513), (600, 33), 64, kv_heads=SLIDING, window=WINDOW, sinks=True),
    Case((3_000,), (8,), 32, kv_heads=2, heads=6, slot=Slot(96, 80)),
)


def cache_of(blocks: int, case: Case, width: int) -> torch.Tensor:
    """[blocks, kv heads, block, width], tokens outside heads, as vLLM's default layout has it."""
    page = case.block * case.kv_heads * width
    between = 3 * page if case.packed else 0
    raw = torch.zeros(blocks * (page + between), dtype=torch.uint8, device="cuda")
    size = (blocks, case.kv_heads, case.block, width)
    return raw.as_strided(size, (page + between, width, case.kv_heads * width, 1))


@dataclass
class Made:
    query: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    cache: torch.Tensor
    slots: list[torch.Tensor]
    batch: Batch
    sinks: torch.Tensor | None


def make(case: Case, seed: int) -> Made:
    torch.manual_seed(seed)
    counts = [-(-length // case.block) for length in case.lengths]
    order = torch.randperm(sum(counts) + 3, device="cuda")[: sum(counts)].int()
    tables = torch.zeros((len(counts), max(counts)), dtype=torch.int32, device="cuda")
    for row, own in zip(tables, order.split(counts), strict=True):
        row[: own.numel()] = own
    places = [torch.arange(length, device="cuda") for length in case.lengths]
    slots = [
        row[place // case.block].long() * case.block + place % case.block
        for row, place in zip(tables, places, strict=True)
    ]
    shape = (case.kv_heads, case.slot.key)
    keys = [torch.randn((length, *shape), device="cuda").bfloat16() for length in case.lengths]
    shape = (case.kv_heads, case.slot.value)
    values = [torch.randn((length, *shape), device="cuda").bfloat16() for length in case.lengths]
    starts = torch.tensor([0, *torch.tensor(case.queries).cumsum(0)], dtype=torch.int32, device="cuda")
    lengths = torch.tensor(case.lengths, dtype=torch.int32, device="cuda")
    # Larger than by chance, so that a few tokens have most of the share.
    query = 3 * torch.randn((sum(case.queries), case.heads, case.slot.key), device="cuda")
    return Made(
        query.bfloat16(),
        keys,
        values,
        cache_of(sum(counts) + 3, case, case.slot.size),
        slots,
        Batch(tables, starts, lengths, max(case.queries)),
        torch.randn(case.heads, device="cuda").bfloat16() if case.sinks else None,
    )


def processors() -> int:
    return torch.cuda.get_device_properties(0).multi_processor_count


def shape_of(case: Case) -> Shape:
    lengths = torch.empty(len(case.lengths))
    batch = Batch(None, None, lengths, max(case.queries))
    of_head = case.heads // case.kv_heads
    return shape_for(batch, case.kv_heads, of_head, case.window, processors())


def run(case: Case, made: Made, shape: Shape) -> torch.Tensor:
    out = torch.empty((*made.query.shape[:2], case.slot.value), dtype=torch.bfloat16, device="cuda")
    scale = case.slot.key**-0.5
    attend(
        made.query, made.cache, case.slot.value, out, made.batch, scale, case.window, made.sinks, shape
    )  # fmt: skip
    return out


def check(number: int, case: Case) -> bool:
    made = make(case, number)
    same = True
    wanted, exact = [], []
    queries = made.query.split(list(case.queries))
    for key, value, slots, query in zip(made.keys, made.values, made.slots, queries, strict=True):
        store_triton.store(key, value, made.cache, slots)
        packed = reference.pack(key, value)
        same &= torch.equal(made.cache.transpose(1, 2)[slots // case.block, slots % case.block], packed)
        common = case.slot.key**-0.5, case.window, made.sinks
        wanted.append(reference.attend(query, *reference.unpack(packed, case.slot), *common))
        exact.append(reference.attend(query, key, value, *common))
    right, unquantised = torch.cat(wanted), torch.cat(exact)
    shape = shape_of(case)
    got = run(case, made, shape).double()
    off = float((got - right).abs().max() / right.abs().max())
    cost = float((right - unquantised).norm() / unquantised.norm())
    fine = same and off <= TOLERANCE
    print(
        f"{list(case.lengths)} query {list(case.queries)} block {case.block}"
        f" heads {case.heads}/{case.kv_heads} window {case.window} sinks {case.sinks}"
        f" packed {case.packed} parts {shape.parts}: stored bytes"
        f" {'same' if same else 'DIFFER'}, furthest {off:.5f}, 4 bits cost {cost:.3f},"
        f" {'ok' if fine else 'WRONG'}",
        flush=True,
    )
    return fine


def warm(numbers: Sequence[int]) -> None:
    """Compile what some cases take, in a process of its own; Triton's cache on disk hands it on."""
    for number in numbers:
        if number < len(CASES):
            case = CASES[number]
            short = Case(
                tuple(min(length, 2_100) for length in case.lengths), case.queries, case.block,
                case.kv_heads, case.heads, case.window, case.sinks, case.packed, case.slot,
            )  # fmt: skip
            made = make(short, 0)
            store_triton.store(made.keys[0], made.values[0], made.cache, made.slots[0])
            run(short, made, shape_of(case))
        else:
            query = (1, 8, 512)[number - len(CASES)]
            timed(2_000, query, fp8=True)()
        torch.cuda.synchronize()


def kernels() -> bool:
    """What each compiled kernel takes of a block's shared memory."""
    right = True
    found = set()
    names = ("_attention_kernel", "_reduce_kernel")
    functions = [getattr(attention_triton, name) for name in names]
    for function in (*functions, store_triton._store_kernel):  # noqa: SLF001 - a benchmark of it
        for cache in function.device_caches.values():
            for kernel in cache[0].values():
                kernel._init_handles()  # noqa: SLF001 - the one way to its registers
                data = kernel.metadata
                right &= data.shared < GB10_SHARED
                found.add((data.name, data.num_warps, data.shared, kernel.n_regs, kernel.n_spills))
    for name, warps, shared, registers, spills in sorted(found):
        print(f"{name}: {warps} warps, shared {shared} B, {registers} registers, {spills} spills", flush=True)
    return right


_TYPES = {"out": "*fp32", "out_largest": "*fp32", "out_sum": "*fp32", "query": "*bf16", "words": "*i16"}
_TYPES |= {"scales": "*i32", "tables": "*i32", "starts": "*i32", "lengths": "*i32", "sinks": "*bf16"}
_TYPES |= {"factor": "fp32"}
_ALIGNED = set(_TYPES) - {"factor"} | {"query_token", "query_head", "out_token", "out_head", "cache_block"}


def for_gb10(job: tuple[int, int, int, bool]) -> tuple[str, int]:
    """Compile the attention kernel for sm_121: what it is for, and its shared memory in bytes."""
    kv_heads, query, window, fp8 = job
    of_head = HEADS // kv_heads
    batch = Batch(None, None, torch.empty(1), query)
    shape = shape_for(batch, kv_heads, of_head, window or None, 48)
    function = attention_triton._attention_kernel  # noqa: SLF001 - a benchmark of it
    width = SLOT.key + SLOT.value if fp8 else SLOT.size
    k0, k1 = pieces(SLOT.key)
    v0, v1 = pieces(SLOT.value)
    constants = {
        "HEAD_BYTES": width, "TOKEN_BYTES": width * kv_heads, "KEY_SCALES": SLOT.key_scales,
        "VALUE_SCALES": SLOT.value_scales, "KEY": SLOT.key, "VALUE": SLOT.value, "BLOCK": 64,
        "OF_HEAD": of_head, "ROWS": shape.rows, "TILE": shape.tile, "SPLIT": shape.parts > 1,
        "WINDOW": window, "SINKS": window > 0, "FP8": fp8, "K0": k0, "K1": k1, "V0": v0, "V1": v1,
        "FENCE": shape.rows > 16,
    }  # fmt: skip
    types = _TYPES | {"out": "*fp32" if shape.parts > 1 else "*bf16", "words": "*i32" if fp8 else "*i16"}
    names = function.arg_names
    signature = {one: "constexpr" if one in constants else types.get(one, "i32") for one in names}
    aligned = {(names.index(one),): [["tt.divisibility", 16]] for one in names if one in _ALIGNED}
    source = ASTSource(
        function, signature, {(names.index(one),): value for one, value in constants.items()}, aligned
    )
    options = {"num_warps": shape.warps, "num_stages": shape.stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", 121, 32), options=options)
    what = f"{'fp8' if fp8 else 'nvfp4'}, {kv_heads} KV heads, query {query}, window {window}"
    return what, compiled.metadata.shared


def timed(length: int, query: int, *, fp8: bool) -> Callable[[], None]:
    """One layer with full attention and one request; each call reads another cache than the one before."""
    width = SLOT.key + SLOT.value if fp8 else SLOT.size
    case = Case((length,), (query,), 64)
    copies = max(2, 400_000 // length)
    blocks = -(-length // 64)
    page = 64 * GLOBAL * width
    # Bytes by chance are as good as any: no code stands for a number that is none.
    raw = torch.randint(0, 255, (copies, blocks * page), dtype=torch.uint8, device="cuda")
    caches = [one.as_strided((blocks, GLOBAL, 64, width), (page, width, GLOBAL * width, 1)) for one in raw]
    tables = torch.randperm(blocks, device="cuda").int()[None, :]
    starts = torch.tensor([0, query], dtype=torch.int32, device="cuda")
    lengths = torch.tensor([length], dtype=torch.int32, device="cuda")
    batch = Batch(tables, starts, lengths, query)
    q = torch.randn((query, HEADS, SLOT.key), device="cuda").bfloat16()
    out = torch.empty((query, HEADS, SLOT.value), dtype=torch.bfloat16, device="cuda")
    shape = shape_of(case)
    turn = iter(range(1 << 60))

    def call() -> None:
        cache = caches[next(turn) % copies]
        attend(q, cache, SLOT.value, out, batch, SLOT.key**-0.5, None, None, shape, fp8=fp8)

    return call


def seconds(call: Callable[[], None], repeats: int = 20) -> float:
    """Of one call, the middle of three rounds; launched as a graph, so that Python's part is left out."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            call()
    rounds = []
    for _ in range(3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        rounds.append(begin.elapsed_time(end) / 1000 / repeats)
    return sorted(rounds)[1]


def main(peak: float) -> int:
    print(
        f"torch {torch.__version__}, Triton {triton.__version__}, {torch.cuda.get_device_name()}", flush=True
    )
    begun = time.monotonic()
    numbers = range(len(CASES) + 3)
    spawn = multiprocessing.get_context("spawn")
    jobs = [(heads, query, window, fp8) for fp8 in (False, True) for heads, query, window in _SHAPES]
    with ProcessPoolExecutor(min(12, os.cpu_count() or 2), mp_context=spawn) as pool:
        compiled = [pool.submit(for_gb10, job) for job in jobs]
        for done in [pool.submit(warm, [number]) for number in numbers]:
            done.result()
        gb10 = [one.result() for one in compiled]
    print(f"compiled in {time.monotonic() - begun:.0f} s", flush=True)
    found = [check(number, case) for number, case in enumerate(CASES)]
    right = all(found)
    for what, shared in gb10:
        print(f"sm_121, {what}: shared {shared} B", flush=True)
        right &= shared < GB10_SHARED
    for query in (1, 8):
        for length in LENGTHS:
            took = {fp8: seconds(timed(length, query, fp8=fp8)) for fp8 in (False, True)}
            share = {
                fp8: length * GLOBAL * (320 if fp8 else SLOT.size) / took[fp8] / 1e9 / peak
                for fp8 in (False, True)
            }
            print(
                f"query {query}, context {length}: nvfp4 {took[False] * 1e6:.0f} us"
                f" ({share[False]:.0%} of peak), fp8 {took[True] * 1e6:.0f} us ({share[True]:.0%}),"
                f" ratio {took[False] / took[True]:.2f}",
                flush=True,
            )
    took = {fp8: seconds(timed(32_000, 2_048, fp8=fp8), 3) for fp8 in (False, True)}
    print(f"prefill of 2,048 after 30,000: nvfp4 {took[False] * 1e3:.2f} ms, fp8 {took[True] * 1e3:.2f} ms")
    made = make(Case((4_096,), (1,), 64), 0)
    took_store = seconds(lambda: store_triton.store(made.keys[0], made.values[0], made.cache, made.slots[0]))
    print(f"store of 4,096 tokens: {took_store * 1e6:.0f} us")
    right &= kernels()
    print("all as they should be" if right else "SOMETHING IS WRONG")
    return 0 if right else 1


_SHAPES = ((GLOBAL, 1, 0), (GLOBAL, 8, 0), (GLOBAL, 512, 0), (SLIDING, 1, WINDOW), (SLIDING, 8, WINDOW))

if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 4_800))

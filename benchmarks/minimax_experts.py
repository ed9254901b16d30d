"""A1 on a GPU: the kernels of the mod `autoround-mixed` against plain torch, at MiniMax-M3's real shapes.

    PYTHONPATH=agents python benchmarks/minimax_experts.py [PEAK_GB_PER_S]

Needs torch and Triton, no vLLM. Three parts: every width alone, and all widths mixed, against the reference
at batches of 1 to 64 (exit code 1 if any is off); shared memory, registers and spills of each kernel for this
GPU, and shared memory for the GB10; and the time of one layer's experts, with the bytes of weights
that it reads in a second as a share of the peak (4,800 GB/s of an H200 unless given). Each timed call takes
other experts than the one before, so that no cache holds them.
"""

import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sparkd_mods.autoround_mixed import experts_torch, experts_triton
from sparkd_mods.autoround_mixed.experts_torch import Activation, Matrices
from sparkd_mods.autoround_mixed.packing import WIDTHS, packed_rows

HIDDEN, INNER, EXPERTS, TOP_K, GROUP = 6144, 3072, 64, 4, 128
ACTIVATION = Activation(1.702, 1.0, 7.0)
MIXED = (2, 3, 3, 4, 3, 2, 4, 3, 8, 3)
"""About 3.4 bits on average; the checkpoint's is reported as 3.2."""
BATCHES = (1, 2, 4, 8, 16, 32, 64)
GB10_SHARED = 101_376
"""Bytes of shared memory that a block may have on GB10."""
TOLERANCE = 0.02
"""Of the largest value: two results in bf16 that were added up in another order."""


def matrices(widths: Sequence[int], rows: int, columns: int, seed: int) -> Matrices:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    table, begin = [], 0
    for width in widths:
        table.append((width, begin))
        begin += packed_rows(rows, width) * columns
    words = torch.randint(
        -(1 << 31), (1 << 31) - 1, (begin,), dtype=torch.int32, device="cuda", generator=generator
    )
    scales = torch.rand((len(widths), rows // GROUP, columns), device="cuda", generator=generator) + 0.5
    # So that values of every width have about the same size.
    spread = torch.tensor([1.0 / (1 << width) for width in widths], device="cuda")[:, None, None]
    scales = (scales * spread * 3 / rows**0.5).half()
    return Matrices(words, torch.tensor(table, device="cuda"), scales, rows, columns)


def inputs(
    tokens: int, experts: int, others: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, weights, and the experts: this rank's are below `experts`, `others` are another's."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    x = torch.randn((tokens, HIDDEN), device="cuda", generator=generator).bfloat16()
    weights = torch.rand((tokens, TOP_K), device="cuda", generator=generator)
    chosen = torch.rand((tokens, experts + others), device="cuda", generator=generator).topk(TOP_K).indices
    return x, weights, torch.where(chosen < experts, chosen, -1)


def check(name: str, widths: Sequence[int], batches: Sequence[int]) -> bool:
    w13, w2 = matrices(widths, HIDDEN, 2 * INNER, 1), matrices(widths, INNER, HIDDEN, 2)
    right = True
    worst = 0.0
    for tokens in batches:
        x, weights, local = inputs(tokens, len(widths), len(widths), tokens)
        wanted = experts_torch.run(x, w13, w2, ACTIVATION, weights, local).float()
        got = experts_triton.run(x, w13, w2, ACTIVATION, weights, local).float()
        off = float((got - wanted).abs().max() / wanted.abs().max().clamp(min=1e-3))
        worst = max(worst, off)
        right &= off <= TOLERANCE
        single = Matrices(w2.words, w2.table[:1], w2.scales[:1], w2.rows, w2.columns)
        made = x[:, :INNER].contiguous()
        plain = (made @ single.dense(0, made.dtype)).float()
        off = float((experts_triton.linear(made, single).float() - plain).abs().max() / plain.abs().max())
        worst = max(worst, off)
        right &= off <= TOLERANCE
    print(
        f"{name}: batches {list(batches)}, furthest {worst:.4f} of the largest {'ok' if right else 'WRONG'}",
        flush=True,
    )
    return right


def warm(job: tuple[int, tuple[int, int, int]]) -> None:
    """Compile the kernels of one shape in a process of its own; Triton's cache on disk hands them on."""
    rows, shape = job
    experts_triton.SHAPES[rows] = shape
    w13, w2 = matrices((2, 3) * 4, 1024, 2048, 1), matrices((2, 3) * 4, 1024, 1024, 2)
    tokens = {1: 2, 16: 20, 32: 40}[rows]
    x = torch.zeros((tokens, 1024), dtype=torch.bfloat16, device="cuda")
    local = torch.ones((tokens, TOP_K), dtype=torch.long, device="cuda")
    experts_triton.run(x, w13, w2, ACTIVATION, torch.rand((tokens, TOP_K), device="cuda"), local)
    experts_triton.linear(x, Matrices(w2.words, w2.table[:1], w2.scales[:1], 1024, 1024))
    torch.cuda.synchronize()


_TYPES = {"x": "*bf16", "made": "*bf16", "out": "*bf16", "words": "*i32", "table": "*i64", "scales": "*fp16"}
_TYPES |= {
    "pairs": "*i32",
    "experts": "*i32",
    "weights": "*fp32",
    "alpha": "fp32",
    "beta": "fp32",
    "limit": "fp32",
}
_ALIGNED = {"x", "made", "out", "words", "table", "scales", "hidden", "inner", "rows", "columns"}


def for_gb10(job: tuple[str, int]) -> tuple[str, int, int]:
    """Compile one kernel for sm_121: its name, the rows of its blocks, its shared memory in bytes."""
    name, rows = job
    function = getattr(experts_triton, name)
    columns, warps, step = experts_triton.SHAPES[rows]
    constants = {"GROUP": GROUP // 32, "ROWS": rows, "COLUMNS": columns, "STEP": step}
    constants |= {"WEIGHTED": True} if name == "product" else {}
    names = function.arg_names
    signature = {one: "constexpr" if one in constants else _TYPES.get(one, "i32") for one in names}
    aligned = {(names.index(one),): [["tt.divisibility", 16]] for one in names if one in _ALIGNED}
    source = ASTSource(
        function, signature, {(names.index(one),): value for one, value in constants.items()}, aligned
    )
    options = {"num_warps": warps, "num_stages": 1}
    made = triton.compile(source, target=GPUTarget("cuda", 121, 32), options=options)
    return name, rows, made.metadata.shared


def kernels() -> bool:
    """What each compiled kernel takes of a block's shared memory."""
    right = True
    for function in (experts_triton.gate_up, experts_triton.product):
        for cache in function.device_caches.values():
            for key, kernel in cache[0].items():
                kernel._init_handles()  # noqa: SLF001 - the one way to its registers
                shared = kernel.metadata.shared
                right &= shared < GB10_SHARED
                rows = str(key)[:200].split("ROWS")[-1][:8] if "ROWS" in str(key) else ""
                print(
                    f"{kernel.metadata.name} {rows}: shared {shared} B, {kernel.n_regs} registers, "
                    f"{kernel.n_spills} spills, {kernel.metadata.num_warps} warps",
                    flush=True,
                )
    return right


def speed(tokens: int, local_only: bool, peak: float) -> tuple[float, float]:
    """Seconds of one call, and its bytes of weights per second as a share of the peak."""
    widths = [MIXED[expert % len(MIXED)] for expert in range(EXPERTS)]
    w13, w2 = _SPEED.setdefault(
        "w", (matrices(widths, HIDDEN, 2 * INNER, 1), matrices(widths, INNER, HIDDEN, 2))
    )
    calls = []
    read = 0
    for number in range(16):
        x, weights, local = inputs(tokens, EXPERTS, 0 if local_only else EXPERTS, 100 + number)
        if tokens == 1:
            # All experts once, before any comes again.
            local = (torch.arange(TOP_K, device="cuda") + TOP_K * number)[None] % EXPERTS
            if not local_only:
                local[0, 2:] = -1
        calls.append((x, weights, local))
        for expert in local[local >= 0].unique().tolist():
            for one in (w13, w2):
                read += packed_rows(one.rows, int(one.table[expert, 0])) * one.columns * 4
                read += one.scales[expert].numel() * 2

    def every() -> None:
        for call in calls:
            experts_triton.run(call[0], w13, w2, ACTIVATION, call[1], call[2])

    every()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        every()
    graph.replay()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(10):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    seconds = begin.elapsed_time(end) / 1000 / 10 / len(calls)
    return seconds, read / len(calls) / seconds / (peak * 1e9)


_SPEED: dict[str, tuple[Matrices, Matrices]] = {}
TRIED = ((32, 4, 16), (32, 8, 32), (64, 8, 16), (64, 8, 32), (64, 16, 32), (128, 16, 32))


def main() -> int:
    peak = float(sys.argv[1]) if len(sys.argv) > 1 else 4800.0
    began = time.monotonic()
    print(torch.cuda.get_device_name(), torch.__version__, "triton", triton.__version__, flush=True)
    jobs = list(experts_triton.SHAPES.items()) + [(1, shape) for shape in TRIED]
    right = True
    with ProcessPoolExecutor(12, mp_context=multiprocessing.get_context("spawn")) as pool:
        compiled = [
            pool.submit(for_gb10, (name, rows))
            for rows in experts_triton.SHAPES
            for name in ("gate_up", "product")
        ]
        list(pool.map(warm, jobs))
        print(f"after {time.monotonic() - began:.0f} s: compiled for this GPU", flush=True)
        for one in compiled:
            name, rows, shared = one.result()
            right &= shared < GB10_SHARED
            print(f"{name}, blocks of {rows}, for GB10: shared {shared} of {GB10_SHARED} B", flush=True)
    print(f"after {time.monotonic() - began:.0f} s: compiled for GB10", flush=True)
    right &= check("mixed", WIDTHS * 2, BATCHES)
    for width in WIDTHS:
        right &= check(f"{width} bits", [width] * 4, BATCHES)
    # Long prompts: more than 16 pairs for each expert.
    right &= check("mixed, long", WIDTHS, (200,))
    right &= kernels()
    print(f"after {time.monotonic() - began:.0f} s")
    usual = experts_triton.SHAPES[1]
    for shape in TRIED:
        experts_triton.SHAPES[1] = shape
        seconds, share = speed(1, local_only=True, peak=peak)
        print(
            f"1 token, columns, warps and step {shape}: {seconds * 1e6:.1f} us, "
            f"{share:.1%} of {peak:.0f} GB/s",
            flush=True,
        )
    experts_triton.SHAPES[1] = usual
    for tokens in BATCHES:
        for local_only in (True, False):
            seconds, share = speed(tokens, local_only, peak)
            where = "all experts here" if local_only else "half of them on the other rank"
            print(f"{tokens} tokens, {where}: {seconds * 1e6:.1f} us, {share:.1%}", flush=True)
    print(f"after {time.monotonic() - began:.0f} s: {'all right' if right else 'WRONG'}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())

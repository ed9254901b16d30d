"""A1 on a GPU: the kernels of the mod `autoround-mixed` against plain torch, at MiniMax-M3's real shapes.

    PYTHONPATH=agents python benchmarks/minimax_experts.py [PEAK_GB_PER_S]

Needs torch and Triton, no vLLM. Exit code 1 if anything is off, or too large for a GB10. Four parts: at every
width, whether what the GPU unpacks is bit by bit what the reference has, and what re-ordering a layer takes;
every width alone, and all widths mixed, against the reference at batches of 1 to 64; shared memory, registers
and spills of each kernel for this GPU, and shared memory for the GB10; and the time of one layer's experts,
with the bytes of weights and scales that it reads in a second as a share of the peak (4,800 GB/s of an H200
unless given), beside what a kernel reaches that does nothing but read. Each timed call takes other experts
than the one before, so that no cache holds them.
"""

import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sparkd_mods.autoround_mixed import experts_torch, experts_triton, kernels
from sparkd_mods.autoround_mixed.experts_torch import Activation, Matrices
from sparkd_mods.autoround_mixed.experts_triton import Shape
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
    """Tiled, of random words: any are valid."""
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
    return Matrices(words, torch.tensor(table, device="cuda"), scales, rows, columns, tiled=True)


def inputs(
    tokens: int, experts: int, others: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, weights, and the experts: this rank's are below `experts`, `others` are another's."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    x = torch.randn((tokens, HIDDEN), device="cuda", generator=generator).bfloat16()
    weights = torch.rand((tokens, TOP_K), device="cuda", generator=generator)
    chosen = torch.rand((tokens, experts + others), device="cuda", generator=generator).topk(TOP_K).indices
    return x, weights, torch.where(chosen < experts, chosen, -1)


def alone(matrices: Matrices, place: int) -> Matrices:
    """One of them, as a linear layer has it."""
    words, bits = matrices.packed(place)
    table = torch.tensor([[bits, 0]], device="cuda")
    return Matrices(
        words.flatten(), table, matrices.scales[place, None], matrices.rows, matrices.columns, tiled=True
    )


def exact(bits: int) -> bool:
    """Rows that are 1 at one input: their products are rows of the matrix, rounded as the reference's."""
    one = matrices([bits], INNER, HIDDEN, bits)
    inputs_ = torch.randperm(INNER, device="cuda")[:512]
    x = torch.zeros((512, INNER), dtype=torch.bfloat16, device="cuda")
    x[torch.arange(512, device="cuda"), inputs_] = 1
    got = experts_triton.linear(x, one, bits)
    same = torch.equal(got, one.dense(0, torch.bfloat16)[inputs_])
    plain = Matrices(one.words.clone(), one.table, one.scales, INNER, HIDDEN)
    wanted = plain.dense(0, torch.bfloat16)
    plain.tile()
    back = Matrices(plain.words, one.table, one.scales, INNER, HIDDEN, tiled=True)
    same &= torch.equal(back.dense(0, torch.bfloat16), wanted)
    print(f"{bits} bits: {'bit by bit the same' if same else 'WRONG'}", flush=True)
    return same


def tiling() -> None:
    """What re-ordering the gate and up of one layer takes, beside their own bytes."""
    widths = [MIXED[expert % len(MIXED)] for expert in range(EXPERTS)]
    made = matrices(widths, HIDDEN, 2 * INNER, 1)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    began = time.monotonic()
    made.tile()
    torch.cuda.synchronize()
    seconds = time.monotonic() - began
    more = (torch.cuda.max_memory_allocated() - before) / 2**20
    print(
        f"re-ordering {made.words.numel() * 4 / 2**20:.0f} MiB: {seconds:.2f} s, {more:.0f} MiB more",
        flush=True,
    )


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
        single = alone(w2, 0)
        made = x[:, :INNER].contiguous()
        plain = (made @ single.dense(0, made.dtype)).float()
        found = experts_triton.linear(made, single, widths[0]).float()
        off = float((found - plain).abs().max() / plain.abs().max())
        worst = max(worst, off)
        right &= off <= TOLERANCE
    print(
        f"{name}: batches {list(batches)}, furthest {worst:.4f} of the largest {'ok' if right else 'WRONG'}",
        flush=True,
    )
    return right


def warm(job: tuple[str, Shape]) -> None:
    """Compile the kernels of one shape in a process of its own; Triton's cache on disk hands them on."""
    name, shape = job
    setattr(experts_triton, name, shape)
    w13, w2 = matrices((2, 3) * 4, 1024, 2048, 1), matrices((2, 3) * 4, 1024, 1024, 2)
    tokens = {"ALONE": 2, "FEW": 7, "MANY": 20}[name]
    experts_triton.SINGLE = 8
    x = torch.zeros((tokens, 1024), dtype=torch.bfloat16, device="cuda")
    local = torch.ones((tokens, TOP_K), dtype=torch.long, device="cuda")
    experts_triton.run(x, w13, w2, ACTIVATION, torch.rand((tokens, TOP_K), device="cuda"), local)
    torch.cuda.synchronize()


def warm_linear(bits: int) -> None:
    one = matrices([bits], 1024, 1024, 2)
    for tokens in (1, 20):
        x = torch.zeros((tokens, 1024), dtype=torch.bfloat16, device="cuda")
        experts_triton.linear(x, one, bits)
    torch.cuda.synchronize()


_TYPES = {"x": "*bf16", "made": "*bf16", "out": "*bf16", "halves": "*i16", "table": "*i64", "scales": "*fp16"}
_TYPES |= {
    "pairs": "*i32",
    "experts": "*i32",
    "weights": "*fp32",
    "alpha": "fp32",
    "beta": "fp32",
    "limit": "fp32",
}
_ALIGNED = {"x", "made", "out", "halves", "table", "scales", "hidden", "inner", "rows", "columns"}


def for_gb10(job: tuple[str, str]) -> tuple[str, str, int]:
    """Compile one kernel for sm_121: its name, that of its shape, its shared memory in bytes."""
    name, kind = job
    function = getattr(kernels, name)
    shape = getattr(experts_triton, kind)
    constants = {"GROUP": GROUP, "ROWS": shape.rows, "COLUMNS": shape.columns, "STAGES": shape.stages}
    constants |= {"SINGLE": kind == "ALONE", "PACKED": True}
    names = function.arg_names
    types = _TYPES | ({"experts": "*i64"} if kind == "ALONE" else {})
    signature = {one: "constexpr" if one in constants else types.get(one, "i32") for one in names}
    aligned = {(names.index(one),): [["tt.divisibility", 16]] for one in names if one in _ALIGNED}
    source = ASTSource(
        function, signature, {(names.index(one),): value for one, value in constants.items()}, aligned
    )
    options = {"num_warps": shape.warps, "num_stages": shape.stages}
    made = triton.compile(source, target=GPUTarget("cuda", 121, 32), options=options)
    return name, kind, made.metadata.shared


def compiled() -> bool:
    """What each compiled kernel takes of a block's shared memory."""
    right = True
    for function in (kernels.gate_up, kernels.product, kernels.linear):
        for cache in function.device_caches.values():
            for kernel in cache[0].values():
                kernel._init_handles()  # noqa: SLF001 - the one way to its registers
                shared = kernel.metadata.shared
                right &= shared < GB10_SHARED
                print(
                    f"{kernel.metadata.name}: shared {shared} B, {kernel.n_regs} registers, "
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

    seconds = timed(every) / len(calls)
    return seconds, read / len(calls) / seconds / (peak * 1e9)


def timed(what: Callable[[], None]) -> float:
    """Seconds of it in a graph: the middle one of eleven times."""
    what()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        what()
    graph.replay()
    found = []
    for _ in range(11):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) / 1000)
    return sorted(found)[5]


@triton.jit
def reading(words, out, BLOCK: tl.constexpr, TIMES: tl.constexpr):  # noqa: ANN001, ANN201, N803 - Triton reads annotations
    """Reads every word once, sixteen bytes a thread and TIMES of them at a time, and nothing else."""
    at = words + tl.program_id(0).to(tl.int64) * (BLOCK * TIMES) + tl.arange(0, BLOCK)
    seen = tl.zeros((BLOCK,), tl.int32)
    for number in tl.static_range(TIMES):
        seen ^= tl.load(at + number * BLOCK)
    if tl.sum(seen) == 1234567891:
        tl.store(out, 1)


def only_read(peak: float) -> None:
    """As many bytes as a token's experts have, in one launch each."""
    words, count = _SPEED["w"][0].words, 96_000_000 // 4 // 16384
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    starts = range(0, words.numel() - count * 16384, count * 16384)

    def every() -> None:
        for start in starts:
            reading[count,](words[start:], out, BLOCK=4096, TIMES=4, num_warps=8)

    seconds = timed(every) / len(starts)
    size = count * 16384 * 4
    print(
        f"only read {size / 1e6:.0f} MB: {seconds * 1e6:.1f} us, {size / seconds / peak / 1e9:.1%}",
        flush=True,
    )


_SPEED: dict[str, tuple[Matrices, Matrices]] = {}
TRIED = (Shape(8, 32, 2, 2), Shape(8, 32, 2, 4), Shape(8, 64, 4, 2), Shape(8, 64, 4, 3))


def main() -> int:
    peak = float(sys.argv[1]) if len(sys.argv) > 1 else 4800.0
    began = time.monotonic()
    print(torch.cuda.get_device_name(), torch.__version__, "triton", triton.__version__, flush=True)
    usual = experts_triton.ALONE
    kinds = ("ALONE", "FEW", "MANY")
    jobs = [(kind, getattr(experts_triton, kind)) for kind in kinds] + [("ALONE", shape) for shape in TRIED]
    right = True
    with ProcessPoolExecutor(14, mp_context=multiprocessing.get_context("spawn")) as pool:
        gb10 = [pool.submit(for_gb10, (name, kind)) for kind in kinds for name in ("gate_up", "product")]
        lines = [pool.submit(warm_linear, bits) for bits in WIDTHS]
        list(pool.map(warm, jobs))
        for line in lines:
            line.result()
        print(f"after {time.monotonic() - began:.0f} s: compiled for this GPU", flush=True)
        for one in gb10:
            name, kind, shared = one.result()
            right &= shared < GB10_SHARED
            print(f"{name} {kind}, for GB10: shared {shared} of {GB10_SHARED} B", flush=True)
    print(f"after {time.monotonic() - began:.0f} s: compiled for GB10", flush=True)
    for width in WIDTHS:
        right &= exact(width)
    right &= check("mixed", WIDTHS * 2, BATCHES)
    for width in WIDTHS:
        right &= check(f"{width} bits", [width] * 4, BATCHES)
    # Long prompts: more than 16 pairs for each expert.
    right &= check("mixed, long", WIDTHS, (200,))
    tiling()
    print(f"after {time.monotonic() - began:.0f} s", flush=True)
    for shape in (usual, *TRIED):
        experts_triton.ALONE = shape
        seconds, share = speed(1, local_only=True, peak=peak)
        print(f"1 token, {shape}: {seconds * 1e6:.1f} us, {share:.1%} of {peak:.0f} GB/s", flush=True)
    experts_triton.ALONE = usual
    only_read(peak)
    for tokens in BATCHES:
        for local_only in (True, False):
            seconds, share = speed(tokens, local_only, peak)
            where = "all experts here" if local_only else "half of them on the other rank"
            print(f"{tokens} tokens, {where}: {seconds * 1e6:.1f} us, {share:.1%}", flush=True)
    right &= compiled()
    print(f"after {time.monotonic() - began:.0f} s: {'all right' if right else 'WRONG'}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())

"""Marlin repack of NVFP4 experts without the peak that ends a node with unified memory."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from sparkd_mods._framework import patch
from sparkd_mods._framework.declare import FIXED, NEEDED, Mod, Target

MARLIN = "vllm.model_executor.layers.quantization.utils.marlin_utils_fp4"
SCALE_FACTOR = "_nvfp4_compute_scale_factor"
PREPARE = "prepare_nvfp4_moe_layer_for_marlin"

MOD = Mod(
    summary="repack NVFP4 experts for Marlin one expert at a time, with the same bits as a result",
    why="a layer of w13 and w2 needs 3.92 times its own size on top while it is repacked: the maximum of its "
    "scales is taken through int64 indices of all of them, and up to 0.24 all experts stand in a list and in "
    "its concatenation at once",
    upstream="marlin_utils_fp4.py; the list is gone in 0.32, the indices are still there in 0.33",
    versions=">=0.23,<0.34",
    needed="all; from 0.32 on only for the scale factor",
    targets=(
        Target(
            MARLIN,
            {
                SCALE_FACTOR: {
                    "1e5a5d898ea0": NEEDED,  # 0.23.0, 0.24.0
                    "5ea6f9433c37": NEEDED,  # 0.32.0, 0.33.0
                },
                PREPARE: {
                    "f9c0515bd5dc": NEEDED,  # 0.23.0
                    "d08eace90f47": NEEDED,  # 0.24.0
                    "872b5ee48148": FIXED,  # 0.32.0, 0.33.0
                },
            },
        ),
    ),
)

GROUP = 16
"""Values of NVFP4 that share one scale."""
PART_ELEMENTS = 1 << 20
"""Elements of the scales that are looked at in one go: 4 MiB as float32."""


def apply(module: ModuleType) -> None:
    patch.replace(module, SCALE_FACTOR, scale_factor)
    if patch.needed(MOD, module, PREPARE):
        patch.replace(module, PREPARE, prepare)


def scale_factor(marlin_scales: Any, a_dtype: Any = None) -> float:
    """The power of two, at least 1.0, that lifts the largest scale to just below 448.

    The same value as upstream's: the largest of the scales above zero, found part by part. NaN compares as
    not above zero and is left out there too.
    """
    import torch

    if a_dtype == torch.half or marlin_scales.numel() == 0:
        return 1.0
    row = max(1, marlin_scales.numel() // marlin_scales.size(0))
    largest = torch.zeros((), dtype=torch.float32, device=marlin_scales.device)
    for part in marlin_scales.split(max(1, PART_ELEMENTS // row)):
        values = part.float()
        largest = torch.maximum(largest, values.where(values > 0, 0.0).max())
    largest = largest * 2**7
    if not 0 < largest < 448 * 2**7:
        return 1.0
    return float((448 * 2**7 / largest).log2().floor().exp2().item())


def prepare(  # noqa: PLR0917 - upstream's arguments
    layer: Any,
    w13: Any,
    w13_scale: Any,
    w13_scale_2: Any,
    w2: Any,
    w2_scale: Any,
    w2_scale_2: Any,
    is_act_and_mul: bool,
) -> tuple[Any, Any, Any, Any, Any, Any]:
    """As upstream's, whose arguments these are; a repacked expert takes the place of its own input."""
    from importlib import import_module

    import torch

    marlin = import_module(MARLIN)
    input_dtype = marlin.get_marlin_input_dtype(prefix="")
    if input_dtype is not None and input_dtype.itemsize == 1:
        raise RuntimeError("NVFP4 weights with 8-bit activations are not supported by Marlin")
    shards = 2 if is_act_and_mul else 1
    hidden, inner = layer.hidden_size, layer.intermediate_size_per_partition
    padded = _padded(marlin, hidden, inner)
    layer.workspace = marlin.marlin_make_workspace_new(w13.device, 4)

    def pad_rows(x: Any) -> Any:
        """[shards * inner, columns] -> [shards * padded, columns], zeros below each shard."""
        if padded == inner:
            return x
        x = x.reshape(shards, inner, x.size(-1))
        return torch.nn.functional.pad(x, (0, 0, 0, padded - inner)).reshape(shards * padded, -1)

    def pad_columns(x: Any, values: int) -> Any:
        """`values`: how many of the inner size's values one element of `x` stands for."""
        return x if padded == inner else torch.nn.functional.pad(x, (0, (padded - inner) // values))

    repacked13 = _repack(marlin, w13, pad_rows, size_n=shards * padded, size_k=hidden)
    repacked2 = _repack(marlin, w2, lambda x: pad_columns(x, 2), size_n=hidden, size_k=padded)
    dtype = layer.params_dtype
    scales13, global13 = _scales(
        marlin, w13_scale, w13_scale_2, pad_rows, dtype, size_n=shards * padded, size_k=hidden
    )
    scales2, global2 = _scales(
        marlin, w2_scale, w2_scale_2, lambda x: pad_columns(x, GROUP), dtype, size_n=hidden, size_k=padded
    )
    return repacked13, scales13, global13, repacked2, scales2, global2


def _padded(marlin: Any, hidden: int, inner: int) -> int:
    """The inner size that Marlin's tiles take. 0.23 does not pad."""
    if not hasattr(marlin, "marlin_pad_dim"):
        return inner
    if hidden % 64:
        raise ValueError(f"Marlin's tiles do not fit a hidden size of {hidden}")
    tile = 64 if hidden % 128 == 0 else 128
    return -(-inner // tile) * tile


def _repack(marlin: Any, weight: Any, pad: Callable[[Any], Any], *, size_n: int, size_k: int) -> Any:
    import torch

    no_order = torch.empty(0, dtype=torch.int, device=weight.device)
    out = None
    for expert in range(weight.size(0)):
        repacked = marlin.ops.gptq_marlin_repack(
            b_q_weight=pad(weight[expert]).view(torch.int32).T.contiguous(),
            perm=no_order,
            size_k=size_k,
            size_n=size_n,
            num_bits=4,
            is_a_8bit=False,
        )
        if out is None:
            out = _room(weight, repacked)
        out[expert] = repacked
    return out


def _scales(
    marlin: Any,
    scales: Any,
    global_scales: Any,
    pad: Callable[[Any], Any],
    dtype: Any,
    *,
    size_n: int,
    size_k: int,
) -> tuple[Any, Any]:
    # All experts share one global scale, so the factor comes from all of them.
    factor = scale_factor(scales, dtype)
    out = None
    for expert in range(scales.size(0)):
        permuted = marlin.marlin_permute_scales(
            s=pad(scales[expert].to(dtype)).T,
            size_k=size_k,
            size_n=size_n,
            group_size=GROUP,
            is_a_8bit=False,
        )
        processed, _ = marlin.nvfp4_marlin_process_scales(permuted, scale_factor=factor, a_dtype=dtype)
        if out is None:
            out = _room(scales, processed)
        out[expert] = processed
    return out, marlin.nvfp4_marlin_process_global_scale(global_scales, dtype) / factor


def _room(source: Any, one: Any) -> Any:
    """Where `source.size(0)` tensors like `one` go: over their own input, or elsewhere if they do not fit.

    Each is written after its input was read for the last time.
    """
    import torch

    shape = (source.size(0), *one.shape)
    if not source.is_contiguous() or source[0].nbytes != one.nbytes:
        return torch.empty(shape, dtype=one.dtype, device=one.device)
    return source.detach().view(-1).view(one.dtype).view(shape)

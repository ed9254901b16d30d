"""Block FP8 (one FP32 scale for 128 x 128) of a fused QKV, cut for any number of ranks.

A head's rows straddle the blocks, so no permutation of blocks brings them into another order: this rank's
rows are dequantised, put in order, and quantised again. As many ranks as chunks need none of that.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from sparkd_mods.mimo_fused_qkv.layout import Heads, Order, heads_of, to_plain

BLOCK = 128
SCALE = "weight_scale_inv"


class BlockFp8:
    """One call of `load_weights`. `loaded`: the parameters that were filled here."""

    def __init__(self, model: Any, order: Order, chunks: int) -> None:
        self.loaded: set[str] = set()
        self._model = model
        self._order = order
        self._chunks = chunks
        self._parameters = dict(model.named_parameters())
        self._halves: dict[str, dict[str, Any]] = model.__dict__.setdefault("_sparkd_halves", {})

    def rest(self, weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        for name, tensor in weights:
            prefix, _, kind = name.rpartition(".")
            ours = prefix.endswith("qkv_proj") and f"{prefix}.{SCALE}" in self._parameters
            if not ours or kind not in {"weight", SCALE}:
                yield name, tensor
                continue
            halves = self._halves.setdefault(prefix, {})
            halves[kind] = tensor
            if len(halves) == 2:
                self._load(prefix, **self._halves.pop(prefix))

    def _load(self, prefix: str, weight: Any, weight_scale_inv: Any) -> None:
        from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size

        heads = heads_of(self._model.get_submodule(prefix.rpartition(".")[0]))
        rank, size = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()
        if self._order == "interleaved" and size == self._chunks:
            cut = weight.chunk(size)[rank], weight_scale_inv.chunk(size)[rank]
        else:
            cut = self._requantised(weight, weight_scale_inv, heads, rank, size)
        for kind, tensor in zip(("weight", SCALE), cut, strict=True):
            name = f"{prefix}.{kind}"
            self._parameters[name].data.copy_(tensor)
            self.loaded.add(name)

    def _requantised(self, weight: Any, scales: Any, heads: Heads, rank: int, size: int) -> tuple[Any, Any]:
        import torch
        from vllm.model_executor.layers.quantization.utils.quant_utils import GroupShape, scaled_quantize

        rows = torch.arange(heads.rows)
        scale_rows = self._scale_rows(rows, scales.size(0))
        if self._order == "interleaved":
            rows = to_plain(rows, heads, self._chunks)
        rows = torch.cat([rows[part] for part in rank_rows(heads, rank, size)])
        columns = scales[scale_rows[rows]].float().repeat_interleave(BLOCK, dim=1)[:, : weight.size(1)]
        values = weight[rows].float() * columns
        # The last block may be a part of one: what is added to fill it is cut off again.
        filled = torch.nn.functional.pad(values, (0, -values.size(1) % BLOCK, 0, -values.size(0) % BLOCK))
        quantised, new_scales = scaled_quantize(
            filled, GroupShape(BLOCK, BLOCK), weight.dtype, compute_dtype=torch.float32
        )
        return quantised[: values.size(0), : values.size(1)], new_scales

    def _scale_rows(self, rows: Any, count: int) -> Any:
        """For each row of the checkpoint's weight the row of its scale."""
        chunk_rows = rows.size(0) // self._chunks
        tiles = -(-chunk_rows // BLOCK)
        if self._order == "interleaved" and count == tiles * self._chunks:
            return rows // chunk_rows * tiles + rows % chunk_rows // BLOCK
        if count == -(-rows.size(0) // BLOCK):
            return rows // BLOCK
        raise ValueError(f"{count} rows of scales do not fit {rows.size(0)} rows in {self._chunks} chunks")


def rank_rows(heads: Heads, rank: int, size: int) -> tuple[slice, slice, slice]:
    """A rank's rows of Q, K and V in a plain [Q | K | V]; ranks that outnumber KV heads share them."""
    per_rank = max(1, heads.kv_heads // size)
    slot = rank if size <= heads.kv_heads else rank // (size // heads.kv_heads)
    q = heads.heads // size * heads.head_dim
    k, v = per_rank * heads.head_dim, per_rank * heads.v_head_dim
    k_begin = heads.heads * heads.head_dim
    v_begin = k_begin + heads.kv_heads * heads.head_dim
    return (
        slice(rank * q, (rank + 1) * q),
        slice(k_begin + slot * k, k_begin + (slot + 1) * k),
        slice(v_begin + slot * v, v_begin + (slot + 1) * v),
    )

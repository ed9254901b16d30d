"""vLLM's backend for keys and values of different widths, with a cache of 4 bits.

It goes by the name of the one it is made from, and leaves everything but kv-cache-dtype nvfp4 to that. What
is new of a step is packed by `store_triton`; `attention_triton` reads the cache, for prompts too.
"""

from dataclasses import replace
from functools import cache
from typing import Any, ClassVar, Final

import torch
from vllm.v1.attention.backends.triton_attn_diffkv import (
    TritonAttentionDiffKVBackend,
    TritonAttentionDiffKVImpl,
)

from sparkd_mods.mimo_nvfp4_kv.attention_triton import Batch, attend, shape_for
from sparkd_mods.mimo_nvfp4_kv.layout import Slot
from sparkd_mods.mimo_nvfp4_kv.store_triton import store

DTYPE: Final = "nvfp4"
TOKENS_FIRST: Final = hasattr(TritonAttentionDiffKVBackend, "get_kv_cache_shape")
"""Up to 0.28 a backend names the shape of a layer's cache: [blocks, block, heads, bytes]. Later ones have
heads first, and ask a backend for no more than the bytes of a head."""


class Nvfp4DiffKvBackend(TritonAttentionDiffKVBackend):  # type: ignore[misc]
    supported_kv_cache_dtypes: ClassVar[list[str]] = [
        *TritonAttentionDiffKVBackend.supported_kv_cache_dtypes,
        DTYPE,
    ]

    @classmethod
    def set_head_size_v(cls, head_size_v: int) -> None:
        # Its other classes ask the one they know.
        TritonAttentionDiffKVBackend.set_head_size_v(head_size_v)

    @staticmethod
    def get_impl_cls() -> type["Nvfp4DiffKvImpl"]:
        return Nvfp4DiffKvImpl

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        """From 0.29 on: what a head of a token takes."""
        if not spec.kv_quant_mode.is_nvfp4:
            return super().customize_spec(spec)
        return replace(spec, state_content_bytes=Slot(spec.head_size, spec.head_size_v).size)

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        """Up to 0.28."""
        shape = TritonAttentionDiffKVBackend.get_kv_cache_shape(
            num_blocks, block_size, num_kv_heads, head_size, cache_dtype_str
        )
        if cache_dtype_str == DTYPE:
            slot = Slot(head_size, TritonAttentionDiffKVBackend.head_size_v)
            shape = (*shape[:-1], slot.size)
        return tuple(shape)


class Nvfp4DiffKvImpl(TritonAttentionDiffKVImpl):  # type: ignore[misc]
    def __init__(  # noqa: PLR0917 - as vLLM calls it
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: Any,
        sliding_window: int | None,
        kv_cache_dtype: str,
        *more: Any,
        **extra: Any,
    ) -> None:
        """Raises NotImplementedError for a packed cache with what MiMo's layers do not have."""
        self.packed = kv_cache_dtype == DTYPE
        known = "auto" if self.packed else kv_cache_dtype
        first = num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window, known
        super().__init__(*first, *more, **extra)
        if not self.packed:
            return
        self.kv_cache_dtype = kv_cache_dtype
        # Else vLLM rounds queries to fp8 for a cache that is quantised.
        self.supports_quant_query_input = False
        self.window = sliding_window
        if self.alibi_slopes is not None or self.logits_soft_cap:
            raise NotImplementedError(f"a KV cache in {DTYPE} beside position biases or capped logits")

    def do_kv_cache_update(self, layer: Any, key: Any, value: Any, kv_cache: Any, slot_mapping: Any) -> None:
        if self.packed:
            store(key, value, _heads_first(kv_cache), slot_mapping)
        else:
            super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)

    def forward(  # noqa: PLR0917 - as vLLM calls it
        self,
        layer: Any,
        query: Any,
        key: Any,
        value: Any,
        kv_cache: Any,
        attn_metadata: Any,
        output: Any,
        output_scale: Any = None,
        output_block_scale: Any = None,
    ) -> Any:
        if (
            not self.packed
            or attn_metadata is None
            or output_scale is not None
            or output_block_scale is not None
        ):
            return super().forward(
                layer, query, key, value, kv_cache, attn_metadata, output, output_scale, output_block_scale
            )
        tokens = attn_metadata.num_actual_tokens
        batch = Batch(
            attn_metadata.block_table,
            attn_metadata.query_start_loc,
            attn_metadata.seq_lens,
            attn_metadata.max_query_len,
        )
        of_head = self.num_heads // self.num_kv_heads
        shape = shape_for(
            batch, self.num_kv_heads, of_head, self.window, _processors(query.device.index or 0)
        )
        packed = _heads_first(kv_cache)
        attend(
            query[:tokens], packed, output.shape[-1], output[:tokens], batch, self.scale, self.window,
            self.sinks, shape,
        )  # fmt: skip
        return output


def _heads_first(kv_cache: Any) -> Any:
    return kv_cache.transpose(1, 2) if TOKENS_FIRST else kv_cache


@cache
def _processors(device: int) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)

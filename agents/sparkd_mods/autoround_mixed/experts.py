"""Routed experts whose widths differ: their storage, their loading, and which way computes them.

All matrices of one kind lie behind one another in one buffer of words, each as long as its width makes it; a
table says for each expert of this rank how wide it is and where it begins. With expert parallelism a rank has
whole experts, else all of them with a part of their inner size. Gate and up alternate column by column, so
that one pass of a kernel has both of a column at hand.
"""

from collections.abc import Sequence
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase

from sparkd_mods.autoround_mixed import experts_torch
from sparkd_mods.autoround_mixed.experts_torch import Activation, Matrices
from sparkd_mods.autoround_mixed.packing import packed_rows

ACTIVATION = "swigluoai_uninterleave"


class MixedExpertsMethod(FusedMoEMethodBase):  # type: ignore[misc]  # vLLM is not there where types are checked
    def __init__(self, moe: Any, bits: Sequence[tuple[int, int]], group: int) -> None:
        """`bits`: of gate and up, and of down, of every expert of the layer."""
        super().__init__(moe)
        self._bits = bits
        self._group = group
        self._tiled = False

    def create_weights(
        self,
        layer: Any,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,  # noqa: ARG002 - vLLM's signature
        **_: Any,
    ) -> None:
        inner = intermediate_size_per_partition
        if inner % self._group or hidden_size % self._group:
            raise ValueError(
                f"{layer.layer_name}: {hidden_size} x {inner} on each rank cuts a group of {self._group} "
                "values: use --enable-expert-parallel"
            )
        mine = self._mine(layer, num_experts)
        self._make(layer, "w13", [self._bits[expert][0] for expert in mine], hidden_size, 2 * inner)
        self._make(layer, "w2", [self._bits[expert][1] for expert in mine], inner, hidden_size)
        parallel = layer.moe_config.moe_parallel_config
        self._part = 0 if parallel.use_ep else parallel.tp_rank

    def _mine(self, layer: Any, count: int) -> list[int]:
        """The experts of this rank, by their place on it."""
        found = {self._local(layer, expert): expert for expert in range(len(self._bits))}
        return [found[place] for place in range(count)]

    @staticmethod
    def _local(layer: Any, expert: int) -> int:
        """Below 0 for an expert of another rank."""
        return int(layer._map_global_expert_id_to_local_expert_id(expert))  # noqa: SLF001 - its one way to say it

    def _make(self, layer: Any, name: str, bits: list[int], rows: int, columns: int) -> None:
        table, begin = [], 0
        for width in bits:
            table.append((width, begin))
            begin += packed_rows(rows, width) * columns
        words = torch.nn.Parameter(torch.empty(begin, dtype=torch.int32), requires_grad=False)
        # AutoRound writes them so; the loader takes over the format of the first that comes.
        shape = (len(bits), rows // self._group, columns)
        scales = torch.nn.Parameter(torch.empty(shape, dtype=torch.float16), requires_grad=False)
        for suffix, parameter in (("qweight", words), ("scales", scales)):
            layer.register_parameter(f"{name}_{suffix}", parameter)
            parameter.weight_loader = _Loader(self, layer, name, suffix)
        layer.register_buffer(f"{name}_table", torch.tensor(table, dtype=torch.int64), persistent=False)
        # Where it is read on the host no one has to wait for the GPU.
        setattr(layer, f"{name}_places", tuple(table))
        setattr(layer, f"{name}_shape", (rows, columns))

    def matrices(self, layer: Any, name: str) -> Matrices:
        words, table, scales = (getattr(layer, f"{name}_{part}") for part in ("qweight", "table", "scales"))
        rows, columns = getattr(layer, f"{name}_shape")
        return Matrices(words, table, scales, rows, columns, self._tiled)

    def load(  # noqa: PLR0917 - one tensor's address
        self, layer: Any, name: str, suffix: str, tensor: Any, shard: str, expert: int
    ) -> bool:
        """One tensor of one expert, whole, into its place. False if it is another rank's."""
        place = self._local(layer, expert)
        if place < 0:
            return False
        rows, columns = getattr(layer, f"{name}_shape")
        bits, begin = getattr(layer, f"{name}_places")[place]
        parameter = getattr(layer, f"{name}_{suffix}")
        if suffix == "qweight":
            height = packed_rows(rows, bits)
            target = parameter.data[begin : begin + height * columns].view(height, columns)
        else:
            adopt(parameter, tensor)
            target = parameter.data[place]
            height = target.size(0)
        if shard == "w2":
            part = tensor.narrow(0, self._part * height, height)
        else:
            target = target[:, 0::2] if shard == "w1" else target[:, 1::2]
            part = tensor.narrow(1, self._part * (columns // 2), columns // 2)
        if part.shape != target.shape:
            raise ValueError(
                f"expert {expert} {shard} {suffix}: {list(part.shape)} is not "
                f"{list(target.shape)}, as {bits} bits are"
            )
        target.copy_(part)
        return True

    def get_fused_moe_quant_config(self, layer: Any) -> None:  # noqa: ARG002 - vLLM's signature
        return None

    def maybe_roundup_sizes(
        self, hidden_size: int, intermediate_size_per_partition: int, *_: Any, **__: Any
    ) -> tuple[int, int]:
        return hidden_size, intermediate_size_per_partition

    def process_weights_after_loading(self, layer: Any) -> None:
        name = getattr(layer.activation, "value", layer.activation)
        if name != ACTIVATION or layer.apply_router_weight_on_input:
            raise ValueError(f"{layer.layer_name}: computes {ACTIVATION} with weights at the end, not {name}")
        both = [self.matrices(layer, one) for one in ("w13", "w2")]
        if all(one.words.is_cuda and one.fits() for one in both) and not self._tiled:
            for one in both:
                one.tile()
            self._tiled = True

    def apply(
        self,
        layer: Any,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        *_: Any,
        **__: Any,
    ) -> torch.Tensor:
        """The sum over the experts of this rank; shared experts are the runner's."""
        w13, w2 = self.matrices(layer, "w13"), self.matrices(layer, "w2")
        expert_map = layer.expert_map
        local = topk_ids.long() if expert_map is None else expert_map[topk_ids.long()].long()
        activation = Activation(layer.swiglu_alpha, layer.swiglu_beta, layer.swiglu_limit)
        if self._tiled:
            from sparkd_mods.autoround_mixed import experts_triton

            return experts_triton.run(x, w13, w2, activation, topk_weights, local)
        return experts_torch.run(x, w13, w2, activation, topk_weights, local)


class _Loader:
    """What vLLM calls for a tensor of an expert. Its name says which parameter it belongs to."""

    supports_moe_loading = True

    def __init__(self, method: MixedExpertsMethod, layer: Any, name: str, suffix: str) -> None:
        self._method = method
        self._layer = layer
        self._name = name
        self._suffix = suffix

    def __call__(
        self,
        _parameter: Any,
        tensor: torch.Tensor,
        _weight_name: str,
        shard_id: str,
        expert_id: int,
        return_success: bool = False,
    ) -> bool | None:
        done = self._method.load(self._layer, self._name, self._suffix, tensor, shard_id, expert_id)
        return done if return_success else None


def adopt(scales: Any, tensor: torch.Tensor) -> None:
    """Let 16-bit scales have the format of the first that comes: a conversion would round them."""
    if tensor.dtype == scales.dtype or getattr(scales, "adopted", False):
        if tensor.dtype != scales.dtype:
            raise ValueError(f"scales of {tensor.dtype} beside others of {scales.dtype}")
    elif tensor.dtype.itemsize != scales.dtype.itemsize:
        raise ValueError(f"scales of {tensor.dtype}: only those of 16 bits are served")
    else:
        scales.data = scales.data.view(tensor.dtype)
    scales.adopted = True

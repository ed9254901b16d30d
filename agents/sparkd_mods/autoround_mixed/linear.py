"""A linear layer of one width: the attention's output, the shared expert, the dense layers."""

from collections.abc import Callable
from typing import Any

import torch
from vllm.model_executor.layers.linear import LinearMethodBase

from sparkd_mods.autoround_mixed.experts import adopt
from sparkd_mods.autoround_mixed.experts_torch import Matrices
from sparkd_mods.autoround_mixed.packing import packed_rows


class PackedLinearMethod(LinearMethodBase):  # type: ignore[misc]  # vLLM is not there where types are checked
    def __init__(self, bits: int, group: int) -> None:
        super().__init__()
        self._bits = bits
        self._group = group
        self._tiled = False

    def create_weights(  # noqa: PLR0917 - vLLM's signature
        self,
        layer: Any,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,  # noqa: ARG002 - vLLM's signature
        output_size: int,  # noqa: ARG002
        params_dtype: torch.dtype,  # noqa: ARG002
        **attributes: Any,
    ) -> None:
        rows, columns = input_size_per_partition, sum(output_partition_sizes)
        if rows % self._group:
            raise ValueError(f"{layer.prefix}: {rows} inputs on each rank cut a group of {self._group}")
        load = attributes["weight_loader"]
        for name, height, dtype in (
            ("qweight", packed_rows(rows, self._bits), torch.int32),
            ("scales", rows // self._group, torch.float16),
        ):
            parameter = torch.nn.Parameter(torch.empty(height, columns, dtype=dtype), requires_grad=False)
            # Both are cut along the inputs in whole rows and along the outputs in columns, so vLLM's own
            # loaders do it with nothing but these two.
            parameter.input_dim, parameter.output_dim = 0, 1
            parameter.weight_loader = _adopting(load) if name == "scales" else load
            layer.register_parameter(name, parameter)
        layer.register_buffer("table", torch.tensor([(self._bits, 0)], dtype=torch.int64), persistent=False)

    def matrix(self, layer: Any) -> Matrices:
        rows = layer.qweight.size(0) * 32 // self._bits
        words, columns = layer.qweight.view(-1), layer.qweight.size(1)
        return Matrices(words, layer.table, layer.scales[None], rows, columns, tiled=self._tiled)

    def process_weights_after_loading(self, layer: Any) -> None:
        matrix = self.matrix(layer)
        if matrix.words.is_cuda and matrix.fits() and not self._tiled:
            matrix.tile()
            self._tiled = True

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        matrix = self.matrix(layer)
        made = self._multiply(x.flatten(0, -2), matrix).view(*x.shape[:-1], -1)
        return made if bias is None else made + bias

    def _multiply(self, x: torch.Tensor, matrix: Matrices) -> torch.Tensor:
        if self._tiled:
            from sparkd_mods.autoround_mixed import experts_triton

            made: torch.Tensor = experts_triton.linear(x, matrix, self._bits)
            return made
        plain: torch.Tensor = x @ matrix.dense(0, x.dtype)
        return plain


def _adopting(load: Callable[..., Any]) -> Callable[..., Any]:
    def adopted(parameter: Any, tensor: torch.Tensor, *more: Any) -> Any:
        adopt(parameter, tensor)
        return load(parameter, tensor, *more)

    return adopted

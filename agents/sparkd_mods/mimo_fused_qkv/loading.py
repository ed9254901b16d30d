"""Takes the tensors of fused QKV projections out of a checkpoint's stream and loads them.

vLLM's own loader cuts each of them in a way that is right for one layout only, or waits for a scale under a
name that never comes, and says nothing. Here each tensor is brought into plain order and given whole to
`QKVParallelLinear`, which cuts [Q | K | V] itself, with replicated KV heads.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sparkd_mods._framework.requested import setting
from sparkd_mods.mimo_fused_qkv.layout import Order, heads_of, order_of, to_plain

Named = tuple[str, Any]
SCALES = ("weight_scale", "weight_scale_inv")
_depth = threading.local()


class FusedQkv:
    """One call of a model's `load_weights`. `loaded`: the parameters that were filled here."""

    def __init__(self, model: Any, mod: str, skip: Callable[[str], bool], *, unquantised: bool) -> None:
        """`skip`: names that are not this model's. `unquantised`: whether 16-bit weights are taken too."""
        self.loaded: set[str] = set()
        self._model = model
        self._mod = mod
        self._skip = skip
        self._unquantised = unquantised
        self._parameters = dict(model.named_parameters())

    def rest(self, weights: Iterable[Named]) -> Iterator[Named]:
        """What is left for the model's own loader; MXFP8 scales of other layers under the name it knows."""
        for name, tensor in weights:
            if self._skip(name) or not self._take(name, tensor):
                yield self._renamed(name, tensor), tensor

    def _take(self, name: str, tensor: Any) -> bool:
        import torch

        prefix, _, kind = name.rpartition(".")
        weight = self._parameters.get(f"{prefix}.weight")
        if not prefix.endswith("qkv_proj") or weight is None:
            return False  # also a layer of another pipeline stage
        scale = self._parameters.get(f"{prefix}.weight_scale")
        mxfp8 = scale is not None and scale.dtype == torch.uint8
        if kind in SCALES and tensor.dtype == torch.uint8:
            if not mxfp8:
                raise ValueError(
                    f"{name} is an MXFP8 scale, but this vLLM built the layer without one: "
                    "it needs the mod mimo-mxfp8-mixed, or `quantized_layers` does not name the layer"
                )
            self._load(prefix, "weight_scale", tensor)
            return True
        unquantised = self._unquantised and tensor.dtype.itemsize >= 2 and weight.dtype.itemsize >= 2
        if kind == "weight" and (mxfp8 or unquantised):
            self._load(prefix, "weight", tensor)
            return True
        return False

    def _load(self, prefix: str, kind: str, tensor: Any) -> None:
        name = f"{prefix}.{kind}"
        parameter = self._parameters[name]
        attention = self._model.get_submodule(prefix.rpartition(".")[0])
        if self.order == "interleaved":
            tensor = to_plain(tensor, heads_of(attention), self.chunks)
        parameter.weight_loader(parameter, tensor)
        self.loaded.add(name)

    @property
    def order(self) -> Order:
        config = self._model.config
        method = (getattr(config, "quantization_config", None) or {}).get("quant_method")
        quantisation = getattr(self._model, "quant_config", None)
        name = quantisation.get_name() if quantisation is not None else None
        return order_of(setting(self._mod, "order"), config, method or name)

    @property
    def chunks(self) -> int:
        """Of the interleaved order."""
        return int(self._model.config.num_key_value_heads)

    def _renamed(self, name: str, tensor: Any) -> str:
        """`weight_scale_inv` of MXFP8 is a plain exponent; vLLM's layers call it `weight_scale`."""
        import torch

        if (
            tensor.dtype == torch.uint8
            and name.endswith(".weight_scale_inv")
            and name not in self._parameters
        ):
            return name.removesuffix("_inv")
        return name


def load_complete(original: Callable[..., set[str]], model: Any, weights: Iterable[Named]) -> set[str]:
    """Around `load_weights` of a whole model: nothing of an MXFP8 layer or a fused QKV may stay unloaded.

    Raises ValueError that names what is missing. A model inside another one is judged with the outer.
    """
    depth = getattr(_depth, "value", 0)
    _depth.value = depth + 1
    try:
        loaded = original(model, weights)
    finally:
        _depth.value = depth
    if depth == 0:
        seen = model.__dict__.setdefault("_sparkd_loaded", set())
        seen |= loaded or set()
        missing = sorted(set(_must_be_loaded(model)) - seen)
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise ValueError(f"the checkpoint left unloaded: {', '.join(missing[:3])}{more}")
    return loaded


def _must_be_loaded(model: Any) -> Iterator[str]:
    import torch

    for path, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        scale = own.get("weight_scale")
        if scale is not None and scale.dtype == torch.uint8:
            yield f"{path}.weight_scale"
            yield f"{path}.weight"
        elif path.endswith(".qkv_proj") and "weight" in own:
            yield f"{path}.weight"

"""A checkpoint's tensors under the names, and in the forms, that vLLM's MiniMax-M3 loads; nothing is lost.

vLLM's own loaders skip what they do not know without a message. So each tensor is asked here where it goes
before it is given away, and at the end each place that a model has must have been filled.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from sparkd_mods.autoround_mixed.packing import dequantise, is_symmetric
from sparkd_mods.autoround_mixed.widths import of_linear, own_name
from sparkd_mods.minimax_m3_loader import names
from sparkd_mods.minimax_m3_loader.names import Dequantise, Halve, Pass, Place, Skip

Named = tuple[str, Any]
SHOWN = 20
"""Names that an error lists of each kind."""
INDEXED = "MinimaxM3QKVParallelLinearWithIndexer"
_ROUTED = re.compile(r"\.experts\.routed_experts\.(w13|w2)_\w+$")


class IncompleteError(ValueError):
    """The checkpoint and the model do not match name by name."""


class Translation:
    """One call of a model's `load_weights`."""

    def __init__(self, model: Any, *, vision: bool) -> None:
        self._model = model
        self._vision = vision
        self._widths: dict[str, int] = getattr(model.quant_config, "bits", {})
        self._parameters = dict(model.named_parameters())
        self._required, self._allowed = _places(model, self._parameters)
        self._filled: set[Place] = set()
        self._collected: dict[str, dict[str, Any]] = {}
        self._left: list[str] = []
        self._wrong: list[str] = []

    def pairs(self, weights: Iterable[Named]) -> Iterator[Named]:
        """What vLLM's own loader is given."""
        for name, tensor in weights:
            match names.action(name, vision=self._vision):
                case None:
                    self._left.append(name)
                case Skip():
                    pass
                case Pass(target):
                    if not (name in names.LM_HEADS and names.place(target) in self._filled):
                        yield from self._given(name, target, tensor)
                case Halve(gate, up, part):
                    halves = (
                        (tensor, tensor) if part == "g_idx" else tensor.chunk(2, 0 if part == "weight" else 1)
                    )
                    for target, half in zip((gate, up), halves, strict=True):
                        yield from self._given(name, target, half)
                case Dequantise(stem, part):
                    yield from self._collect(name, stem, part, tensor)

    def finish(self, loaded: Iterable[str]) -> None:
        """Raises IncompleteError that lists what is left over, missing, incomplete or of another form."""
        told = set(loaded)
        incomplete = [
            f"{stem}.{part}"
            for stem, parts in self._collected.items()
            for part in names.NEEDED_PARTS
            if part not in parts
        ]
        whole = {f"{name.rpartition('.')[0]}.weight" for name in incomplete}
        missing = [one for one in self._required - self._filled if not self._comes_from(one, whole)]
        refused = [one for one in self._filled if one.parameter not in told]
        kinds = {
            "in the checkpoint, but not in the model": self._left,
            "in the model, but not in the checkpoint": sorted(_said(one) for one in missing),
            "incomplete": incomplete,
            "refused by vLLM's loader": sorted(_said(one) for one in refused),
            "of a form that is not served": self._wrong,
        }
        found = [f"{kind}: {_listed(which)}" for kind, which in kinds.items() if which]
        if found:
            raise IncompleteError("; ".join(found))

    def _comes_from(self, place: Place, names_: set[str]) -> bool:
        return any(names.place(name) == place for name in names_)

    def _given(self, name: str, target: str, tensor: Any) -> Iterator[Named]:
        stem, _, part = target.rpartition(".")
        if part == "g_idx":
            self._check_order(name, tensor)
        elif part == "qzeros":
            self._check_zeros(name, stem, tensor)
        else:
            place = names.place(target)
            if place in self._allowed:
                self._filled.add(place)
                yield target, tensor
            elif not self._elsewhere(place.parameter):
                self._left.append(name)

    def _elsewhere(self, parameter: str) -> bool:
        """Whether another stage of the pipeline has it."""
        from vllm.model_executor.models.utils import is_pp_missing_parameter

        return bool(is_pp_missing_parameter(parameter, self._model))

    def _collect(self, name: str, stem: str, part: str, tensor: Any) -> Iterator[Named]:
        if part == "g_idx":
            self._check_order(name, tensor)
            return
        place = names.place(f"{stem}.weight")
        if place not in self._allowed:
            if not self._elsewhere(place.parameter):
                self._left.append(name)
            return
        parts = self._collected.setdefault(stem, {})
        parts[part] = tensor
        if all(one in parts for one in names.NEEDED_PARTS):
            del self._collected[stem]
            words, zeros, scales = (parts[one] for one in names.NEEDED_PARTS)
            bits = zeros.size(1) * 32 // scales.size(1)
            dtype = self._parameters[place.parameter].dtype
            self._filled.add(place)
            yield f"{stem}.weight", dequantise(words, scales, bits, dtype, zeros).T.contiguous()

    def _check_order(self, name: str, tensor: Any) -> None:
        import torch

        group = getattr(self._model.quant_config, "group_size", 0)
        if not group or not torch.equal(tensor.long().cpu(), torch.arange(tensor.numel()) // group):
            self._wrong.append(f"{name} (its inputs are not in order)")

    def _check_zeros(self, name: str, stem: str, tensor: Any) -> None:
        bits = self._widths.get(own_name(stem)) or of_linear(self._widths, _fused(stem))
        if bits < 16 and not is_symmetric(tensor, bits):
            self._wrong.append(f"{name} (its zero points are not the middle of {bits} bits)")


def _fused(stem: str) -> str:
    return re.sub(r"\.(gate|up)_proj$", ".gate_up_proj", stem)


def _places(model: Any, parameters: dict[str, Any]) -> tuple[set[Place], set[Place]]:
    """What must be filled, and what may be: a rank needs its own experts, and may be given all."""
    required: set[Place] = set()
    allowed: set[Place] = set()
    for name in parameters:
        if ".attn." in name:
            continue  # scales of KV, which a checkpoint need not have
        owner = name.rpartition(".")[0]
        module = model.get_submodule(owner)
        routed = _ROUTED.search(name)
        if routed:
            for expert in range(module.global_num_experts):
                shards = ("w2",) if routed[1] == "w2" else ("w1", "w3")
                places = {Place(name, f"{shard} of expert {expert}") for shard in shards}
                allowed |= places
                if module._map_global_expert_id_to_local_expert_id(expert) >= 0:  # noqa: SLF001 - as in experts.py
                    required |= places
        elif owner.endswith(".qkv_proj"):
            more = ("index_q", "index_k") if type(module).__name__ == INDEXED else ()
            required |= {Place(name, shard) for shard in ("q", "k", "v", *more)}
        elif owner.endswith(".gate_up_proj"):
            required |= {Place(name, shard) for shard in ("gate", "up")}
        else:
            required.add(Place(name))
    return required, allowed | required


def _said(place: Place) -> str:
    return place.parameter if place.shard is None else f"{place.parameter} ({place.shard})"


def _listed(which: list[str]) -> str:
    more = f" and {len(which) - SHOWN} more" if len(which) > SHOWN else ""
    return ", ".join(which[:SHOWN]) + more

"""The biases of MiMo's vision merger."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from sparkd_mods._framework import patch
from sparkd_mods._framework.declare import NEEDED, Mod, Target

NAME = "MiMoVisionPatchMerger.__init__"
LAYERS = (0, 2)
"""Of the merger's `mlp`; between them stands the activation."""

MOD = Mod(
    summary="give both linear layers of the vision merger the bias that the checkpoint has for them",
    why="loading ends with unexpected names: visual.merger.mlp.0.bias, visual.merger.mlp.2.bias",
    upstream="mimo_v2_omni.py, the same text from 0.23 to 0.33",
    versions=">=0.23,<0.34",
    needed="all, with the vision tower",
    targets=(
        Target(
            "vllm.model_executor.models.mimo_v2_omni",
            {
                NAME: {"1781a52ac758": NEEDED},  # 0.23.0 to 0.33.0
            },
        ),
    ),
)


def apply(module: ModuleType) -> None:
    patch.wrap(module, NAME, _init)


def _init(original: Callable[..., None], merger: Any, *args: Any, **kwargs: Any) -> None:
    original(merger, *args, **kwargs)
    for position in LAYERS:
        merger.mlp[position] = _with_bias(merger.mlp[position], kwargs.get("quant_config"))


def _with_bias(linear: Any, quant_config: Any) -> Any:
    """The same layer with a bias of zeros, so that a checkpoint without one means none.

    A row-parallel layer adds it on rank 0 only; that is vLLM's own rule.
    """
    new = type(linear)(
        linear.input_size,
        linear.output_size,
        bias=True,
        quant_config=quant_config,
        prefix=linear.prefix,
        return_bias=linear.return_bias,
        disable_tp=linear.disable_tp,
    )
    new.bias.data.zero_()
    return new

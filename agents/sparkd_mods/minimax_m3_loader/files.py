"""What can be said of a MiniMax-M3 checkpoint before it is loaded: names, shapes, config.json."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from sparkd_mods._framework.checkpoint import Checkpoint, Finding
from sparkd_mods.autoround_mixed import widths
from sparkd_mods.minimax_m3_loader import config_table, names
from sparkd_mods.minimax_m3_loader.names import Dequantise, Halve, Pass, Skip

SHOWN = 20
NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight")
INDEXER = ("q_proj.weight", "k_proj.weight", "q_norm.weight", "k_norm.weight")


def verify(checkpoint: Checkpoint, overrides: Mapping[str, Any]) -> Iterator[Finding]:
    """Everything that the loader would refuse, and everything that config.json has wrong."""
    yield from _config(checkpoint.config, overrides)
    try:
        bits = widths.read(checkpoint.config.get("quantization_config") or {})
    except widths.WidthsError as error:
        yield Finding("block", str(error))
        return
    yield from _names(checkpoint, bits)


def _config(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> Iterator[Finding]:
    checked = config_table.check(config)
    lacking = config_table.lacking(checked.overrides, overrides)
    for one in checked.wrong:
        repaired = one.level != "text_config" and one.key != "architectures"
        told = one.key in {path.rpartition(".")[2] for path in lacking}
        how = "nothing reads it there" if repaired else "" if told else "the profile's hf-overrides repair it"
        yield Finding("block" if told and not repaired else "note", f"{one.said}{f' ({how})' if how else ''}")
    for level in ("text_config", "top level"):
        missing = [key for found, key in checked.missing if found == level]
        if missing and level == "text_config":
            yield Finding("note", f"{level}: not there, and right by vLLM's own class: {', '.join(missing)}")
    for path, value in lacking.items():
        yield Finding("block", f"to repair it: --set 'engine.args.hf-overrides.{path}={_yaml(value)}'")


def _yaml(value: object) -> str:
    """As `--set` reads it, inside single quotes."""
    return json.dumps(value)


def _names(checkpoint: Checkpoint, bits: Mapping[str, int]) -> Iterator[Finding]:
    left = []
    counts: Counter[str] = Counter()
    targets: set[str] = set()
    for name in checkpoint.tensors:
        match names.action(name, vision=True):
            case None:
                left.append(name)
            case Skip(why):
                counts[why] += 1
            case Pass(target):
                targets.add(target)
            case Halve(gate, up, _):
                targets |= {gate, up}
            case Dequantise(stem, part):
                targets.add(f"{stem}.{part}")
    if left:
        yield Finding("block", f"names that the loader does not know: {_listed(left)}")
    wanted = set(_wanted(checkpoint.config, bits))
    missing = sorted(wanted - targets)
    if missing:
        yield Finding("block", f"not in the checkpoint: {_listed(missing)}")
    if not any(name.startswith("vision_tower.") for name in targets):
        yield Finding(
            "note", "there is no vision tower with vLLM's names: only the variant text-only can load"
        )
    yield from _shapes(checkpoint, bits)
    taken = len(checkpoint.tensors) - sum(counts.values())
    skipped = "".join(f", {count} skipped ({why})" for why, count in counts.items())
    yield Finding("note", f"{taken} tensors to load{skipped}; {len(bits)} modules of 2 to 8 bits")


def _wanted(config: Mapping[str, Any], bits: Mapping[str, int]) -> Iterator[str]:
    """The names of the text model after translation, as config.json counts its layers and experts."""
    text = config.get("text_config") or config
    layers = text.get("num_hidden_layers", 60)
    sparse_attention = (text.get("sparse_attention_config") or {}).get("sparse_attention_freq")
    moe = text.get("moe_layer_freq")
    dense_first = [0] * 3 + [1] * max(0, layers - 3)
    yield from ("language_model.lm_head.weight", "language_model.model.norm.weight")
    yield "language_model.model.embed_tokens.weight"
    for layer in range(layers):
        prefix = f"language_model.model.layers.{layer}"
        yield from (f"{prefix}.{name}" for name in NORMS)
        attention = f"{prefix}.self_attn"
        yield from (f"{attention}.{name}.weight" for name in ("q_norm", "k_norm"))
        modules = [f"{attention}.{name}_proj" for name in ("q", "k", "v", "o")]
        if (sparse_attention or dense_first)[layer]:
            yield from (f"{attention}.index_{name}" for name in INDEXER)
        if (moe or dense_first)[layer]:
            block = f"{prefix}.block_sparse_moe"
            yield from (f"{block}.gate.weight", f"{block}.e_score_correction_bias")
            modules += [f"{block}.shared_experts.{name}_proj" for name in ("gate", "up", "down")]
            experts = range(text.get("num_local_experts", 128))
            modules += [f"{block}.experts.{expert}.w{part}" for expert in experts for part in (1, 2, 3)]
        else:
            modules += [f"{prefix}.mlp.{name}_proj" for name in ("gate", "up", "down")]
        for module in modules:
            packed = (
                widths.of_linear(bits, module.replace(".gate_proj", ".gate_up_proj")) < widths.UNQUANTISED
            )
            packed = packed or widths.own_name(module) in bits
            yield from (f"{module}.{part}" for part in (names.NEEDED_PARTS if packed else ("weight",)))


def _shapes(checkpoint: Checkpoint, bits: Mapping[str, int]) -> Iterator[Finding]:
    """Widths by the shapes of each packed tensor against `extra_config`."""
    wrong = []
    for name, shape in checkpoint.tensors.items():
        stem, _, part = name.rpartition(".")
        scales = checkpoint.tensors.get(f"{stem}.scales")
        width = bits.get(widths.own_name(stem))
        if part == "qzeros" and scales and width and shape[1] * 32 != scales[1] * width:
            wrong.append(f"{stem} ({shape[1] * 32 // scales[1]} bits in the file, {width} in extra_config)")
    if wrong:
        yield Finding("block", f"of another width than config.json says: {_listed(wrong)}")


def _listed(which: list[str]) -> str:
    more = f" and {len(which) - SHOWN} more" if len(which) > SHOWN else ""
    return ", ".join(which[:SHOWN]) + more

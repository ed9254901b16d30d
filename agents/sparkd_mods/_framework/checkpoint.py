"""A checkpoint's files on disk, without their data: config.json, and the headers of its safetensors.

What a mod has to say of one it says in a function beside its MOD: `verify(checkpoint, overrides)`, with the
profile's `hf-overrides`, gives findings.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
_HEADER_BYTES = 100_000_000
"""The most that the reference implementation takes."""


@dataclass(frozen=True)
class Finding:
    severity: Literal["block", "note"]
    text: str


@dataclass(frozen=True)
class Checkpoint:
    config: Mapping[str, Any]
    tensors: Mapping[str, tuple[int, ...]]
    """Every tensor's shape, by name."""


def read(folder: Path) -> tuple[Checkpoint, list[Finding]]:
    """What is there, and what is missing or damaged of it, in words."""
    findings: list[Finding] = []
    config = _json(folder / CONFIG, findings)
    shards = sorted(folder.glob("*.safetensors"))
    index = folder / INDEX
    placed: Mapping[str, str] = {}
    if index.exists():
        placed = _json(index, findings).get("weight_map") or {}
        lacking = sorted(set(placed.values()) - {shard.name for shard in shards})
        if lacking:
            findings.append(Finding("block", f"files of the index that are not there: {', '.join(lacking)}"))
    if not shards:
        findings.append(Finding("block", f"{folder} holds no safetensors"))
    tensors: dict[str, tuple[int, ...]] = {}
    for shard in shards:
        try:
            found = _header(shard)
        except (OSError, ValueError, KeyError, TypeError) as error:
            findings.append(Finding("block", f"{shard.name}: {error}"))
            continue
        elsewhere = [name for name in found if placed and placed.get(name) != shard.name]
        if elsewhere:
            # vLLM reads the files, not the index.
            text = f"{shard.name} holds {len(elsewhere)} tensors that the index does not place there"
            findings.append(Finding("note", f"{text}, such as {elsewhere[0]}"))
        tensors |= found
    return Checkpoint(config, tensors), findings


def _json(path: Path, findings: list[Finding]) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        findings.append(Finding("block", f"{path.name} cannot be read: {error}"))
        return {}
    return found if isinstance(found, dict) else {}


def _header(path: Path) -> dict[str, tuple[int, ...]]:
    """Raises ValueError for a file that does not hold what its header says."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= min(max(0, size - 8), _HEADER_BYTES):
            raise ValueError(f"its {size:,} bytes hold no whole header")
        entries = json.loads(file.read(length))
    entries.pop("__metadata__", None)
    end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    if size < 8 + length + end:
        raise ValueError(f"it ends after {size:,} bytes of {8 + length + end:,}")
    return {name: tuple(entry["shape"]) for name, entry in entries.items()}

"""Safetensors files with real headers; their data is a hole, so that hundreds of gigabytes take no room."""

import json
from pathlib import Path


def header(tensors: dict[str, int]) -> bytes:
    """For tensors of so many bytes each, one after the other."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, size in tensors.items():
        entries[name] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def shard(path: Path, tensors: dict[str, int]) -> int:
    """Write one, and give its size."""
    head = header(tensors)
    size = len(head) + sum(tensors.values())
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)
    return size


def checkpoint(folder: Path, shards: int = 3, shard_bytes: int = 4096) -> Path:
    """A folder with an index as the Hub has it: `model-00001-of-00003.safetensors` and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    names = [f"model-{number:05}-of-{shards:05}.safetensors" for number in range(1, shards + 1)]
    weight_map = {}
    for number, name in enumerate(names):
        shard(folder / name, {f"layer.{number}.weight": shard_bytes})
        weight_map[f"layer.{number}.weight"] = name
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder

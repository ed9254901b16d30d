"""Models on this node: where a profile's model and its further ones lie, and what is wrong with them."""

import json
import os
from pathlib import Path
from typing import Any

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")


def find_models(model: dict[str, Any], roots: tuple[str, ...]) -> dict[str, Any]:
    """`path` and `bytes` of the model, `also` (paths by name), and `defects` in words, each with its file.

    `model` is that section of a profile. Raises LookupError for a folder that is nowhere, saying where it was
    looked for.
    """
    path = _find(model, roots, "no model")
    size = sum(entry.stat().st_size for entry in os.scandir(path) if entry.is_file())
    defects = _config_defects(path)
    also: dict[str, str] = {}
    for name, source in model.get("also", {}).items():
        place = _find(source, roots, f"no model for model.also.{name}")
        also[name] = str(place)
        defects += _config_defects(place)
        if not any(file.suffix in _WEIGHTS for file in place.iterdir()):
            defects.append(f"{place}: no weights in it ({', '.join(_WEIGHTS)})")
    return {"path": str(path), "bytes": size, "also": also, "defects": defects}


def candidate_paths(model: dict[str, Any], roots: tuple[str, ...]) -> tuple[Path, ...]:
    """An absolute path as it is; a relative one, or a Hub snapshot, under each model root."""
    path = model.get("path")
    if path is not None:
        if Path(path).is_absolute():
            return (Path(path),)
        return tuple(Path(root) / path for root in roots)
    folder = "models--" + str(model["id"]).replace("/", "--")
    return tuple(Path(root) / folder / "snapshots" / str(model["revision"]) for root in roots)


def _find(model: dict[str, Any], roots: tuple[str, ...], missing: str) -> Path:
    """The first candidate that is a folder with a config.json."""
    candidates = candidate_paths(model, roots)
    for path in candidates:
        if (path / "config.json").is_file():
            return path
    looked = ", ".join(str(path) for path in candidates) or "nowhere: this node has no model roots"
    raise LookupError(f"{missing} with a config.json; looked at {looked}")


def _config_defects(folder: Path) -> list[str]:
    """Of a file that vLLM would report after minutes, from within a library, and often without its name."""
    file = folder / "config.json"
    try:
        text = file.read_text(encoding="utf-8")
        json.loads(text)
    except json.JSONDecodeError as error:
        return [f"{file}: line {error.lineno}: {_defect(text, error)}"]
    except (OSError, UnicodeDecodeError) as error:
        return [f"{file}: cannot be read: {error}"]
    return []


def _defect(text: str, error: json.JSONDecodeError) -> str:
    before = text[: error.pos].rstrip()
    after = text[error.pos :].lstrip()
    # Where Python names the place differs between versions: at the comma, or after it.
    if after.startswith(","):
        before, after = f"{before},", after[1:].lstrip()
    if before.endswith(",") and after[:1] in ("}", "]"):
        return f"a comma after the last entry, before `{after[0]}`"
    return f"not JSON: {error.msg}"

"""Models on this node: where a profile's model and its further ones lie, and what is wrong with them."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Final

import msgspec

from sparkd.records.checkpoint import Checkpoint, CheckpointDefect, ModelsFound
from sparkd_agent.safetensors import POINTER, HeaderUnreadable, read_header

_WEIGHTS: Final = (".safetensors", ".bin", ".pt", ".pth")
_INDEX: Final = ".safetensors.index.json"
_POINTER_BYTES: Final = 1024
"""A pointer file has about 130 bytes; files longer than this are not opened to look for one."""
_HUB_CACHE: Final = "snapshots"
_FILES_MOST: Final = 5000
"""The largest checkpoints have a few hundred; all names travel to the coordinator."""


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def find_models(model: dict[str, Any], roots: tuple[str, ...]) -> ModelsFound:
    """The model of a profile's section `model`, and those of its `also`, each looked through.

    Raises LookupError for a model that is nowhere, saying where it was looked for. A further one that is
    nowhere is a defect of its own: the model itself may be whole.
    """
    path = _find(model, roots, "no model")
    also = {name: _further(name, source, roots) for name, source in model.get("also", {}).items()}
    return ModelsFound(look_through(path), also)


def _further(name: str, source: dict[str, Any], roots: tuple[str, ...]) -> Checkpoint:
    try:
        return look_through(_find(source, roots, f"no model for model.also.{name}"), weights_needed=True)
    except LookupError as error:
        wanted = next((str(path) for path in candidate_paths(source, roots)), "")
        return Checkpoint(wanted, defects=(CheckpointDefect("missing", wanted, str(error)),))


def file_of(model: dict[str, Any], of: str, name: str, roots: tuple[str, ...]) -> Path:
    """A file of the model, or of the one that `also` calls `of`.

    Raises LookupError for what is not there, and for a name that leads out of the folder.
    """
    folder = _find(model["also"][of] if of else model, roots, "no model")
    if not name or name != Path(name).name or name.startswith("."):
        raise LookupError(f"{name!r} is no name of a file of a model")
    return folder / name


def candidate_paths(model: dict[str, Any], roots: tuple[str, ...]) -> tuple[Path, ...]:
    """An absolute path as it is; a relative one, or a Hub snapshot, under each model root."""
    path = model.get("path")
    if path is not None:
        if Path(path).is_absolute():
            return (Path(path),)
        return tuple(Path(root) / path for root in roots)
    folder = "models--" + str(model["id"]).replace("/", "--")
    return tuple(Path(root) / folder / _HUB_CACHE / str(model["revision"]) for root in roots)


def _find(model: dict[str, Any], roots: tuple[str, ...], missing: str) -> Path:
    """The first candidate that is a folder with a config.json."""
    candidates = candidate_paths(model, roots)
    for path in candidates:
        if (path / "config.json").is_file():
            return path
    looked = ", ".join(str(path) for path in candidates) or "nowhere: this node has no model roots"
    others = [name for path in candidates for name in _other_snapshots(path)]
    has = f"; of that model it has {', '.join(others)} only" if others else ""
    raise LookupError(f"{missing} with a config.json; looked at {looked}{has}")


def _other_snapshots(wanted: Path) -> list[str]:
    """Other revisions of the same model in a Hub cache."""
    if wanted.parent.name != _HUB_CACHE:
        return []
    try:
        return sorted(f"revision {path.name}" for path in wanted.parent.iterdir() if path != wanted)
    except OSError:
        return []


def look_through(folder: Path, *, weights_needed: bool = False) -> Checkpoint:
    """Sizes of all files, the headers of the safetensors files among them, and every defect.

    Raises ValueError for a folder with far too many files to be a model.

    `weights_needed`: a folder without any weights is a defect too (vLLM can make up those of a main model).
    """
    in_hub = folder.parent.name == _HUB_CACHE
    files: dict[str, int] = {}
    defects = _config_defects(folder)
    digest = hashlib.sha256()
    headers = 0
    for path in _paths(folder):
        name = path.name
        try:
            files[name] = path.stat().st_size
            if path.suffix == ".safetensors":
                header, whole = read_header(path)
                headers += 1
                digest.update(name.encode() + b"\0" + header)
                if files[name] != whole:
                    defects.append(_size_defect(path, files[name], whole))
            elif files[name] <= _POINTER_BYTES and path.read_bytes().startswith(POINTER):
                defects.append(_defect("pointer", path, "is a Git LFS pointer, not the file itself"))
        except FileNotFoundError:
            defects.append(_defect("link", path, f"is a link to nothing ({_target(path)})"))
        except HeaderUnreadable as error:
            kind = "pointer" if "LFS" in str(error) else "header"
            defects.append(_defect(kind, path, f"is no weights: {error}"))
        except OSError as error:
            defects.append(_defect("header", path, f"cannot be read: {error.strerror}"))
    known = {Path(defect.file).name for defect in defects}
    defects += [d for d in _index_defects(folder, files) if Path(d.file).name not in known]
    if weights_needed and not any(name.endswith(_WEIGHTS) for name in files):
        text = f"no weights in it ({', '.join(_WEIGHTS)})"
        defects.append(CheckpointDefect("weights", str(folder), f"{folder}: {text}"))
    defects += _unfinished(folder.parent.parent / "blobs" if in_hub else folder)
    return Checkpoint(
        path=str(folder),
        revision=folder.name if in_hub else "",
        bytes=sum(files.values()),
        files=files,
        headers=digest.hexdigest()[:16] if headers else "",
        defects=tuple(defects),
    )


def _paths(folder: Path) -> list[Path]:
    """What vLLM reads: the folder's own files, links to nothing included; nothing hidden, no folder below."""
    listed = (Path(entry) for entry in os.scandir(folder) if not entry.is_dir())
    found = [path for path in listed if not path.name.startswith(".") and path.suffix != ".incomplete"]
    if len(found) > _FILES_MOST:
        raise ValueError(f"{folder} has {len(found):,} files: that is no model")
    return sorted(found)


def _index_defects(folder: Path, files: dict[str, int]) -> list[CheckpointDefect]:
    """Shards that an index names and that are not there, and an index that cannot be read.

    Some models come in two layouts, each with an index: where one is whole, the other is only a left-over.
    """
    found, missing, whole = [], [], False
    for name in files:
        if not name.endswith(_INDEX):
            continue
        index = folder / name
        try:
            shards = set(msgspec.json.decode(index.read_bytes(), type=_Index).weight_map.values())
        except (OSError, msgspec.MsgspecError) as error:
            found.append(_defect("config", index, f"cannot be used: {error}"))
            continue
        lacking = sorted(shards - files.keys())
        whole |= not lacking
        missing += [(folder / shard, f"is missing; {name} names {len(shards)} files") for shard in lacking]
    kind = "incomplete" if whole else "missing"
    return found + [_defect(kind, path, text) for path, text in missing]


def _unfinished(folder: Path) -> list[CheckpointDefect]:
    """What downloads leave behind while they run, and when they were broken off."""
    found = sorted(folder.glob("*.incomplete"))
    found += sorted(folder.glob(".cache/huggingface/download/**/*.incomplete"))
    return [
        _defect("incomplete", path, "is a download that was not finished") for path in found if path.is_file()
    ]


def _size_defect(path: Path, size: int, whole: int) -> CheckpointDefect:
    share = f" ({size / whole:.0%})" if size < whole else ""
    return _defect("size", path, f"has {size:,} of the {whole:,} bytes that its header describes{share}")


def _defect(kind: Any, path: Path, text: str) -> CheckpointDefect:
    return CheckpointDefect(kind, str(path), f"{path} {text}")


def _target(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return "gone meanwhile"


def _config_defects(folder: Path) -> list[CheckpointDefect]:
    """Of a file that vLLM would report after minutes, from within a library, and often without its name."""
    file = folder / "config.json"
    try:
        text = file.read_text(encoding="utf-8")
        json.loads(text)
    except json.JSONDecodeError as error:
        text = f"{file}: line {error.lineno}: {_json_error(text, error)}"
    except (OSError, UnicodeDecodeError) as error:
        text = f"{file}: cannot be read: {error}"
    else:
        return []
    return [CheckpointDefect("config", str(file), text)]


def _json_error(text: str, error: json.JSONDecodeError) -> str:
    before = text[: error.pos].rstrip()
    after = text[error.pos :].lstrip()
    # Where Python names the place differs between versions: at the comma, or after it.
    if after.startswith(","):
        before, after = f"{before},", after[1:].lstrip()
    if before.endswith(",") and after[:1] in ("}", "]"):
        return f"a comma after the last entry, before `{after[0]}`"
    return f"not JSON: {error.msg}"

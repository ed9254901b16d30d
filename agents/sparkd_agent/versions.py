"""Versions of what a rank would import, from metadata on disk: an import would cost gigabytes and seconds."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sparkd.records.facts import EngineVersions

_TOLD: Final = {
    "vllm": "vllm",
    "torch": "torch",
    "nccl": r"nvidia_nccl_cu\d+",
    "cuda": r"nvidia_cuda_runtime(?:_cu\d+)?",
    "triton": "triton",
    "flashinfer": "flashinfer_python",
    "transformers": "transformers",
}
"""What two nodes of a gang should have in common, by the name of its distribution in metadata folders."""


def engine_versions(name: str, python: str) -> EngineVersions:
    """Of the engine that this interpreter would import."""
    folders = list(_metadata(python))
    packages = {}
    for told, pattern in _TOLD.items():
        versions: dict[str, str] = {}
        for folder in folders:
            found = re.fullmatch(rf"({pattern})-([^-]+)\.dist-info", folder.name, re.IGNORECASE)
            if found is not None:
                versions.setdefault(found[1].lower(), found[2])
        # Of two distributions of one library (for CUDA 12 and 13) the metadata does not say which is loaded.
        if len(set(versions.values())) == 1:
            packages[told] = next(iter(versions.values()))
    engine = next((f for f in folders if f.name == f"vllm-{packages.get('vllm')}.dist-info"), None)
    return EngineVersions(name, _python_version(python), packages, _build(engine) if engine else "")


def _sites(python: str) -> Iterator[Path]:
    """Where that interpreter has its packages: of a venv, or of a system as Debian lays it out."""
    prefix = Path(python).parent.parent
    for library in (prefix / "lib", prefix / "local" / "lib"):
        for pattern in ("python3.*/site-packages", "python3*/dist-packages"):
            yield from sorted(library.glob(pattern))


def _metadata(python: str) -> Iterator[Path]:
    for site in _sites(python):
        yield from sorted(site.glob("*.dist-info"))


def _python_version(python: str) -> str | None:
    """`3.12.3` of a venv, `3.12` of a system; None for neither."""
    try:
        told = (Path(python).parent.parent / "pyvenv.cfg").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        told = ""
    found = re.search(r"^version(?:_info)? *= *(\d+\.\d+(?:\.\d+)?)", told, re.MULTILINE)
    if found is not None:
        return found[1]
    names = (re.fullmatch(r"python(3\.\d+)", site.parent.name) for site in _sites(python))
    return next((name[1] for name in names if name is not None), None)


def _build(metadata: Path) -> str:
    """A digest over the hashes of all installed files of the package: one version may have many builds.

    Empty when the installer left no list of them.
    """
    try:
        lines = (metadata / "RECORD").read_bytes().splitlines()
    except OSError:
        return ""
    own = sorted(line for line in lines if line.startswith(b"vllm/") and b",sha256=" in line)
    return hashlib.sha256(b"\n".join(own)).hexdigest()[:12] if own else ""


def mods_fingerprint(plugin_folder: Path) -> str:
    """A digest over the sources of all mods; empty if there are none."""
    digest = hashlib.sha256()
    sources = sorted((plugin_folder / "sparkd_mods").rglob("*.py"))
    for source in sources:
        digest.update(str(source.relative_to(plugin_folder)).encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:12] if sources else ""

"""What is in an image: run by its own python, in a container that can neither write nor reach anything.

    python3 …/sparkd_mods/_framework/look.py

Standard library only. vLLM is looked at, not imported: that takes 10 s and a GPU. Prints one JSON document,
in the words of `sparkd.records.image.ImageFacts`.
"""

from __future__ import annotations  # an image's python may be older than any that vLLM runs on

import ast
import importlib.util
import json
import os
import re
import sys
from importlib import metadata
from pathlib import Path

_FLAG = re.compile(r"""["'](--[A-Za-z][A-Za-z0-9_-]*)["']""")
_FLAG_FILES = ("engine/arg_utils.py", "entrypoints/**/cli_args.py", "entrypoints/cli/serve.py")
"""Where `vllm serve` takes its flags from, in 0.24 to 0.33."""


def main() -> None:
    sys.path[0] = str(Path(__file__).parents[2])  # in the place of this file's own folder
    vllm = _package("vllm")
    nccl = sorted(name for name in _names() if name.startswith("nvidia-nccl"))
    facts = {
        "python": ".".join(map(str, sys.version_info[:3])),
        "machine": os.uname().machine,
        "vllm": _version("vllm"),
        "vllm_commit": _commit(),
        "torch": _version("torch"),
        "nccl": _version(nccl[0]) if nccl else None,
        "uid": os.getuid(),
        "gid": os.getgid(),
        "flags": flags(vllm) if vllm is not None else None,
        "mods": _mods(),
    }
    os.write(1, json.dumps(facts).encode())


def flags(vllm: Path) -> list[str] | None:
    """The flags of `vllm serve` as its sources name them, and a few names more; None without those sources.

    Dataclasses of arguments make a flag of every field; the rest is spelled out.
    """
    found: set[str] = set()
    for pattern in _FLAG_FILES:
        for file in vllm.glob(pattern):
            text = file.read_text(encoding="utf-8")
            found.update(_FLAG.findall(text))
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef) and node.name.endswith("Args"):
                    fields = (one.target for one in node.body if isinstance(one, ast.AnnAssign))
                    found.update(f"--{one.id}" for one in fields if isinstance(one, ast.Name))
    return sorted({name[2:].replace("_", "-") for name in found}) or None


def _mods() -> list[object]:
    # Not found before `main` has said where.
    from sparkd_mods._framework import catalogue
    from sparkd_mods._framework.command import looked_at

    return [looked_at(entry) for entry in catalogue.entries()]


def _package(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)  # a top-level name is found without importing anything
    folders = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(folders))) if folders else None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _names() -> set[str]:
    return {one.metadata["Name"] or "" for one in metadata.distributions()}


def _commit() -> str | None:
    try:
        text = metadata.distribution("vllm").read_text("direct_url.json")
        commit: str | None = json.loads(text or "{}").get("vcs_info", {}).get("commit_id")
    except metadata.PackageNotFoundError:
        return None
    return commit


if __name__ == "__main__":
    main()

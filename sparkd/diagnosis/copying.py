"""How files of a model get onto a node that lacks them: the command is a person's to run, not sparkd's."""

import posixpath
import shlex
from collections.abc import Sequence

from sparkd.records.checkpoint import Checkpoint
from sparkd.records.defaults import DEFAULTS, GIB
from sparkd.records.preflight import Asked, Member

_HUB_CACHE = "snapshots"


def is_damaged(checkpoint: Checkpoint) -> bool:
    """An unfinished download beside it does not make a model unusable."""
    return any(defect.kind != "incomplete" for defect in checkpoint.defects)


def bring(members: Sequence[Member], name: str, target: Member) -> str:
    """The copy from the first node that has this model whole; empty if no other machine has."""
    have = target.checkpoints.get(name)
    broken = {posixpath.basename(defect.file) for defect in have.defects} if have is not None else set()
    for source in members:
        good = source.checkpoints.get(name)
        if source.address == target.address or good is None or is_damaged(good):
            continue
        size = sum(
            count
            for file, count in good.files.items()
            if have is None or file in broken or have.files.get(file) != count
        )
        return copy(source, good, target, size)
    return ""


def copy(source: Member, good: Checkpoint, target: Member, size: int) -> str:
    """On which node to run what, how much it copies (`size` in bytes) and how long that takes.

    A snapshot of a Hub cache is links into `blobs`, so the whole model's folder is copied: `-a` keeps links
    as they are, `-H` files with several names; files that are equal already are skipped. Without `--mkpath`
    rsync makes the last folder of a path only.
    """
    folder = _whole(good.path)
    host = f"[{target.fabric_address}]" if ":" in target.fabric_address else target.fabric_address
    there = _place(source, folder, target)
    words = ("rsync", "-aH", "--partial", "--mkpath", "--info=progress2", f"{folder}/", f"{host}:{there}/")
    minutes = max(1, round(size / DEFAULTS.copy_bytes_s / 60))
    amount = f"{size / GIB:.1f} GiB, about {minutes} min" if size >= GIB / 10 else "less than a minute"
    return f"on {source.name}: {shlex.join(words)} ({amount})"


def fetch(asked: Asked | None, target: Member) -> str:
    """Where no node has it: from the Hub, if that is where it comes from."""
    if asked is None or asked.model_id is None or not target.model_roots:
        return "put the checkpoint into a model root of the node, or correct the model's path"
    words = ("hf", "download", asked.model_id, "--revision", asked.revision or "main")
    root = shlex.quote(target.model_roots[0])
    return f"no node has it; on {target.name}: HF_HUB_CACHE={root} {shlex.join(words)}"


def _whole(folder: str) -> str:
    above = posixpath.dirname(folder)
    return posixpath.dirname(above) if posixpath.basename(above) == _HUB_CACHE else folder


def _place(source: Member, folder: str, target: Member) -> str:
    """The same place below the target's first model root; else the same path."""
    for root in source.model_roots:
        if target.model_roots and folder.startswith(f"{root.rstrip('/')}/"):
            return posixpath.join(target.model_roots[0], posixpath.relpath(folder, root))
    return folder

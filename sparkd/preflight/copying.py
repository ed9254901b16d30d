"""The command that brings a model's files from one node to another: a person runs it, sparkd does not."""

import shlex
from pathlib import PurePosixPath

from sparkd.preflight.member import Member
from sparkd.records.checkpoint import Checkpoint
from sparkd.records.defaults import DEFAULTS, GIB

_SNAPSHOTS = "snapshots"


def copy_remedy(source: Member, good: Checkpoint, target: Member, size: int) -> str:
    """On which node to run what, how much it copies (`size` in bytes) and how long that takes.

    A snapshot of a Hub cache is links into `blobs`, so the whole model's folder is copied: `-a` keeps links
    as they are, `-H` files with several names; files that are equal already are skipped.
    """
    folder = _whole(PurePosixPath(good.path))
    there = _place(source, folder, target)
    address = target.facts.fabric_address
    host = f"[{address}]" if ":" in address else address
    words = ("rsync", "-aH", "--partial", "--info=progress2", f"{folder}/", f"{host}:{there}/")
    minutes = max(1, round(size / DEFAULTS.copy_bytes_s / 60))
    amount = f"{size / GIB:.1f} GiB, about {minutes} min" if size >= GIB / 10 else "less than a minute"
    return f"on {source.name}: {shlex.join(words)} ({amount})"


def _whole(folder: PurePosixPath) -> PurePosixPath:
    return folder.parent.parent if folder.parent.name == _SNAPSHOTS else folder


def _place(source: Member, folder: PurePosixPath, target: Member) -> PurePosixPath:
    """The same place below the target's first model root; else the same path."""
    for root in source.facts.model_roots:
        if folder.is_relative_to(root) and target.facts.model_roots:
            return PurePosixPath(target.facts.model_roots[0]) / folder.relative_to(root)
    return folder

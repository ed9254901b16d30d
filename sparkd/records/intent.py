"""What a person asked for. Its hash decides whether two `up`s ask for the same."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class Intent:
    """A deployment as asked for, after variants and `--set`, before any node was looked at.

    `profile` is the resolved profile as plain JSON (schema `sparkd/v1`); `nodes` are node names in rank
    order (empty: the coordinator chooses); `engine_args` are the words after `--`.
    """

    profile_name: str
    profile: dict[str, Any]
    variants: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    image: str | None = None
    engine_args: tuple[str, ...] = ()
    forced: tuple[str, ...] = ()
    """Verdict ids waived by name; recorded, but no part of "the same"."""
    origins: dict[str, str] = field(default_factory=dict, compare=False)
    """Where each leaf of `profile` comes from, by dotted path: `default`, `profile`, `variant NAME`,
    `--set KEY=VALUE` or `-- WORDS`. Shown in plans; no part of "the same"."""
    verified: tuple[str, ...] = field(default=(), compare=False)
    """What was tried of a profile that never ran on the machines it is for. Shown in plans."""
    files: dict[str, str] = field(default_factory=dict)
    """Content of `engine.files` by name, in base64: nodes cannot reach the folder that it came from."""

    def digest(self) -> str:
        """Twelve hex digits over everything that would change how the gang is started."""
        same = (self.profile, self.nodes, self.image, self.engine_args, *filter(None, [self.files]))
        return hashlib.sha256(msgspec.json.encode(same, order="sorted")).hexdigest()[:12]


def files_folder(root: str, files: Mapping[str, str]) -> str:
    """Where files with this content lie on a node whose agent puts files below `root`.

    The content is in the name, so that another content is another plan and a rank never sees it change.
    """
    return f"{root}/{hashlib.sha256(msgspec.json.encode(files, order='sorted')).hexdigest()[:12]}"


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What every rank spec carries, so that a coordinator without its database can rebuild the deployment."""

    name: str
    intent: Intent
    serial: int
    generation: int
    nodes: tuple[str, ...]
    """Node ids in rank order."""
    api_port: int
    rendezvous_ports: tuple[int, ...] = field(default=())
    """Used so far, oldest first; the last one is this generation's."""

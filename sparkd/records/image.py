"""What a node found out about a container image. Nothing of it is guessed: None is what is not there."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class ModFacts:
    """What a mod says of an image's vLLM, as `sparkd mods check` does."""

    name: str
    verdict: Literal["needed", "fixed", "unknown"]
    reason: str
    fingerprints: dict[str, str] = field(default_factory=dict)
    """Of what it wraps, by module and name; empty where there is nothing of that name."""


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """Read by the image's own python, once for each content."""

    python: str
    machine: str
    """As `uname -m` says it."""
    vllm: str | None = None
    vllm_commit: str | None = None
    torch: str | None = None
    nccl: str | None = None
    uid: int = 0
    gid: int = 0
    """The image's own user, whom ranks do not run as: that is the node's choice."""
    flags: tuple[str, ...] | None = None
    """Of `vllm serve`, canonical, as the sources have them, maybe a few more; None without sources."""
    mods: tuple[ModFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class ImageReport:
    """An image that a node can run."""

    name: str
    identity: str
    """Of its content: layers and how they are run. Both of Docker's image stores give the same."""
    facts: ImageFacts
    command: tuple[str, ...]
    """How vLLM is started in it; the words of a rank follow."""


@dataclass(frozen=True, slots=True)
class ImageTrouble:
    """Why a node cannot run it: what a verdict says."""

    id: str
    title: str
    said: str
    """By the engine, or of the image."""
    remedy: str


@dataclass(frozen=True, slots=True)
class ImageAnswer:
    """To the task `image`: one of the two."""

    report: ImageReport | None = None
    trouble: ImageTrouble | None = None

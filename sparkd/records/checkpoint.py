"""A model's files as one node has them: what was read of them, and what is wrong with them."""

from dataclasses import dataclass, field
from typing import Literal

DefectKind = Literal["config", "weights", "missing", "size", "header", "pointer", "link", "incomplete"]
"""`config`: not JSON; `weights`: none there; `missing`: named by the index only; `size`: not as long as its
header says; `header`: none that can be read; `pointer`: the few lines that Git LFS leaves in a file's place;
`link`: to nothing; `incomplete`: a download that was not finished."""


@dataclass(frozen=True, slots=True)
class CheckpointDefect:
    kind: DefectKind
    file: str
    """Absolute path."""
    detail: str
    """In plain words, the file included."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One folder of a model. Of safetensors files only the headers were read."""

    path: str
    revision: str = ""
    """The commit, for a snapshot in a Hub cache."""
    bytes: int = 0
    files: dict[str, int] = field(default_factory=dict)
    """Bytes of each file by its name; hidden files and folders are left out."""
    headers: str = ""
    """Over names, types, shapes and places of all tensors; empty without a safetensors file."""
    defects: tuple[CheckpointDefect, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelsFound:
    """Answer to the task `files`: the profile's model, and those of `model.also` by name."""

    model: Checkpoint
    also: dict[str, Checkpoint] = field(default_factory=dict)

    @property
    def all(self) -> dict[str, Checkpoint]:
        """By the name in the profile; the model itself is the empty name."""
        return {"": self.model, **self.also}

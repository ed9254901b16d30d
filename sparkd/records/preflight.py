"""What a preflight knows when it judges: what is asked of the nodes, and what each of them answered."""

from dataclasses import dataclass, field
from typing import Any

from sparkd.records.checkpoint import Checkpoint, ModelsFound
from sparkd.records.fabric import NodeFabric
from sparkd.records.facts import MachineFacts
from sparkd.records.image import ImageAnswer
from sparkd.records.plan import MemoryLine
from sparkd.records.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Member:
    """One node. `machine` and `models` are None when it did not answer, or was not asked."""

    name: str
    address: str = ""
    fabric_address: str = ""
    local: bool = False
    """Of a local set: a guest on a machine whose other programs and limits are not its business."""
    runtime: str | None = None
    """How it would start a rank; None: not at all."""
    model_roots: tuple[str, ...] = ()
    interface_named: bool = True
    """A rank there is told over which interface gloo meets its peers."""
    clock_off_s: float | None = None
    """The node's wall clock minus the coordinator's, right within the error; None: not measured yet."""
    clock_error_s: float = 0.0
    machine: MachineFacts | None = None
    machine_unknown: str = ""
    """Why there is none."""
    models: ModelsFound | None = None
    models_unknown: str = ""
    """Why there are none; empty also when no model was looked for."""
    fabric: NodeFabric | None = None
    image: ImageAnswer | None = None
    """Of the image that was asked for."""
    image_unknown: str = ""
    """Why there is no answer; empty also when none was asked for."""

    @property
    def checkpoints(self) -> dict[str, Checkpoint]:
        """By the name in the profile; the model itself is the empty name."""
        return self.models.all if self.models is not None else {}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a launch wants of its nodes."""

    ranks: int = 1
    mods: tuple[str, ...] = ()
    model_id: str | None = None
    """On the Hub, with its revision; None for a model that is known by its path."""
    revision: str | None = None
    args: dict[str, Any] = field(default_factory=dict)
    """Of the engine, by their canonical names."""
    image: str | None = None
    """Ranks run in containers of it, so what is installed beside an agent is not what they use."""


@dataclass(frozen=True, slots=True)
class Preflight:
    """What was found without starting anything: `POST /v1/preflight`."""

    deployment: str | None
    """None: the nodes were looked at by themselves."""
    members: tuple[Member, ...]
    """In rank order, else by name."""
    verdicts: tuple[Verdict, ...]
    """Blocks first."""
    memory: tuple[MemoryLine, ...] = ()
    """What each rank needs of its node."""
    took_s: float = 0.0

"""The durable half of a deployment: what must survive the coordinator."""

from dataclasses import dataclass, field
from typing import Literal

from sparkd.gang.budget import Budget
from sparkd.records.document import DeploymentSerial, Desired
from sparkd.records.fall import Fall
from sparkd.records.intent import Descriptor, Intent
from sparkd.records.rank import RankSpec
from sparkd.records.status import Phase
from sparkd.records.verdict import Verdict


@dataclass(frozen=True, slots=True)
class GangRecord:
    """One row of the coordinator's database. Written before anything that follows from it is visible."""

    name: str
    intent: Intent
    serial: int = 1
    desired: Desired = "up"
    removed: bool = False
    phase: Phase = "pending"
    reason: str = "asked for"
    since_wall: float = 0.0
    nodes: tuple[str, ...] = ()
    """Node ids in rank order; empty until chosen."""
    generation: int = 0
    specs: tuple[RankSpec, ...] = ()
    """The ranks of `generation`; `specs[r]` runs on `nodes[r]`."""
    api_port: int = 0
    rendezvous_ports: tuple[int, ...] = ()
    ending: Literal["stopped", "failed", "pending"] = "stopped"
    """What `stopping` ends in: `pending` when it was asked for again meanwhile."""
    falls: int = 0
    budget: Budget = field(default_factory=Budget)
    fall: Fall | None = None
    verdicts: tuple[Verdict, ...] = ()
    left_on: tuple[str, ...] = ()
    boot_s: float = 0.0
    """How long the last boot took."""
    told_exits: tuple[tuple[str, int], ...] = ()
    """(rank's name, pid) of the last process ends that were told: an agent repeats one until acknowledged."""
    probed: str = ""
    """The key of the last collective probe before a launch, and whether it passed."""
    proven: bool = False

    @property
    def descriptor(self) -> Descriptor:
        return Descriptor(
            name=self.name,
            intent=self.intent,
            serial=self.serial,
            generation=self.generation,
            nodes=self.nodes,
            api_port=self.api_port,
            rendezvous_ports=self.rendezvous_ports,
        )

    @property
    def deployment_serial(self) -> DeploymentSerial:
        return DeploymentSerial(self.name, self.serial, self.desired, self.removed)

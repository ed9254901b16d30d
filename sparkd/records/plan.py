"""A plan: a profile applied to concrete nodes, every value with its origin."""

from dataclasses import dataclass, field
from typing import Literal

from sparkd.records.rank import Address, RankSpec
from sparkd.records.verdict import Verdict

Origin = Literal["profile", "variant", "set", "argument", "node", "fabric", "default", "sparkd"]


@dataclass(frozen=True, slots=True)
class PlannedArg:
    """One flag as it stands in argv: `words` are one or more argv elements, in order."""

    words: tuple[str, ...]
    origin: Origin
    note: str = ""


@dataclass(frozen=True, slots=True)
class PlannedEnv:
    name: str
    value: str
    origin: Origin
    note: str = ""


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """One summand of what a rank needs of its node."""

    label: str
    bytes: int


@dataclass(frozen=True, slots=True)
class RankPlan:
    rank: int
    node: str
    node_name: str
    node_address: str
    command: tuple[str, ...]
    """The engine's own command on that node; argv is `command` + the words of `args`."""
    args: tuple[PlannedArg, ...]
    env: tuple[PlannedEnv, ...]
    spec: RankSpec

    @property
    def argv(self) -> tuple[str, ...]:
        return self.command + tuple(word for arg in self.args for word in arg.words)


@dataclass(frozen=True, slots=True)
class Plan:
    deployment: str
    profile: str
    generation: int
    model_path: str
    api: Address
    rendezvous: Address
    served_names: tuple[str, ...]
    ranks: tuple[RankPlan, ...]
    notes: tuple[str, ...] = ()
    verdicts: tuple[Verdict, ...] = field(default=())
    memory: tuple[MemoryLine, ...] = ()
    """The sum that must fit each rank's node."""
    verified: tuple[str, ...] = ()
    """What was tried of a profile that never ran on the machines it is for."""

"""One turn of the gang machine: the state being changed and the commands collected on the way.

A turn lives inside one call of `machine.step`; seen from outside the machine is a pure function.
"""

from dataclasses import replace
from typing import Any

from sparkd.clock import Instant
from sparkd.gang.budget import Policy
from sparkd.gang.record import GangRecord
from sparkd.gang.state import Gang, GangCommand, PendingTask, Say, Waiting, World
from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd.records.document import Task, TaskKind
from sparkd.records.report import RankReport
from sparkd.records.status import Phase


class Turn:
    def __init__(self, gang: Gang, world: World, now: Instant, limits: Defaults = DEFAULTS) -> None:
        self.gang = gang
        self.world = world
        self.now = now
        self.limits = limits
        self.commands: list[GangCommand] = []

    @property
    def record(self) -> GangRecord:
        return self.gang.record

    @property
    def phase(self) -> Phase:
        return self.gang.record.phase

    @property
    def policy(self) -> Policy:
        section = self.record.intent.profile.get("restart", {})
        return Policy(
            budget=int(section.get("budget", self.limits.restart_budget)),
            backoff_s=float(section.get("backoff_s", self.limits.restart_backoff_s)),
            backoff_max_s=float(section.get("backoff_max_s", self.limits.restart_backoff_max_s)),
        )

    def change(self, **changes: Any) -> None:
        self.gang = replace(self.gang, **changes)

    def write(self, **changes: Any) -> None:
        """Change the durable record."""
        self.gang = replace(self.gang, record=replace(self.gang.record, **changes))

    def say(self, kind: str, reason: str, *, node: str | None = None, rank: int | None = None) -> None:
        self.commands.append(Say(kind, reason, node, rank))

    def enter(self, phase: Phase, reason: str, **record: Any) -> None:
        """Change the phase: durable, told with its reason, and the waiting starts anew."""
        before = self.phase
        if self.gang.collective is not None:
            names = {spec.name for spec in self.gang.collective.specs}
            self.change(probe_left=self.gang.probe_left | names)
        self.write(phase=phase, reason=reason, since_wall=self.now.wall, **record)
        self.change(
            phase_since=self.now.mono,
            waiting=None,
            tasks=(),
            stacks_until=None,
            progress_at=self.now.mono,
            collective=None,
            tried=None,
        )
        self.commands.append(Say("phase", reason, from_=before, to=phase))

    def wait(
        self,
        what: str,
        then: str,
        *,
        rank: int | None = None,
        node: str | None = None,
        deadline: float | None = None,
    ) -> None:
        """Say what is waited for. `since` stays while it is the same thing."""
        old = self.gang.waiting
        same = old is not None and (old.what, old.rank, old.node) == (what, rank, node)
        since = old.since if old is not None and same else self.now.mono
        self.change(waiting=Waiting(what, since, then, rank, node, deadline))

    def ask(self, kind: TaskKind, node: str, args: dict[str, Any], deadline_s: float) -> None:
        """Put a question to a node, with an id that no other try of any coordinator's life uses."""
        record = self.record
        number = len(self.gang.tasks)
        task_id = f"{record.name}.{record.serial}.{record.generation}.{kind}.{self.now.wall:.3f}.{number}"
        task = PendingTask(node, Task(task_id, kind, args, deadline_s), self.now.mono + deadline_s)
        self.change(tasks=(*self.gang.tasks, task))

    def name_of(self, node_id: str) -> str:
        node = self.world.nodes.get(node_id)
        return node.name if node else node_id

    def report(self, rank: int) -> RankReport | None:
        """What the node of a rank of the present generation last said about it."""
        node = self.world.nodes.get(self.record.nodes[rank])
        return node.reports.get(self.record.specs[rank].name) if node else None

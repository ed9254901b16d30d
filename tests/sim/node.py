"""A simulated node: the real core of the agent over a simulated process table and disk."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sparkd.clock import Instant
from sparkd.records.collective import CollectiveReport
from sparkd.records.defaults import DEFAULTS
from sparkd.records.document import DeploymentSerial, Document, Revision
from sparkd.records.intent import Descriptor, Intent
from sparkd.records.memory import Memory
from sparkd.records.names import parse_rank_name
from sparkd.records.rank import Address, MemoryNeed, Probe, RankSpec
from sparkd.records.report import (
    Caller,
    Condemned,
    Exit,
    Hello,
    LedgerRank,
    NodeFacts,
    ProbeReport,
    RankReport,
    Refusal,
    Report,
    Sample,
    TaskResult,
)
from sparkd_agent.core import machine
from sparkd_agent.core.state import (
    Begin,
    Core,
    CoreEvent,
    DocumentCame,
    Existing,
    Fence,
    Forget,
    GoneTold,
    Kill,
    LeaseGiven,
    MemoryShort,
    RankChanged,
    SaveFences,
    Start,
    StartFailed,
    Terminate,
)

POOL = 120 << 30
RANK_BYTES = 80 << 30
IMPORT_S = 0.4
"""Of torch by a rank of a probe."""


@dataclass
class SimRank:
    """The processes of one rank. `state` as a supervisor would tell it."""

    spec: RankSpec
    born: float
    state: str = "running"
    fell: str | None = None
    exit: Exit | None = None
    joined: bool = False
    frozen: bool = False
    stubborn_until: float = 0.0
    """SIGKILL does not end it before (a process stuck in the kernel)."""
    dies_at: float | None = None
    warmed_at: float | None = None
    condemned: Condemned | None = None
    """Its node's memory does not bear it."""
    proved_at: float | None = None
    """Rank 0: when last a token came, which needs every rank."""
    told: CollectiveReport | None = None
    """Of a collective probe."""

    @property
    def alive(self) -> bool:
        return self.state != "gone"


@dataclass
class Disk:
    """What survives the agent: its ledger. `full`: nothing can be written."""

    accepted: Revision = field(default_factory=lambda: Revision(0, 0))
    instance: str = ""
    generations: dict[str, int] = field(default_factory=dict)
    deployments: dict[str, DeploymentSerial] = field(default_factory=dict)
    rows: dict[str, tuple[RankSpec, str, str]] = field(default_factory=dict)
    """name -> (spec, boot, state)."""
    outbox: list[Exit | TaskResult] = field(default_factory=list)
    folders: set[str] = field(default_factory=set)
    full: bool = False


class SimNode:
    """One machine. `up`: powered; `agent`: the daemon runs."""

    def __init__(self, node_id: str, holder: str, later: Callable[[float, Callable[[], None]], None]) -> None:
        self.id = node_id
        self.holder = holder
        self.boots = 0
        self.runs = 0
        self.seq = 0
        self.powered = True
        self.disk = Disk()
        self.ranks: dict[str, SimRank] = {}
        self.started_names: list[str] = []
        self.core: Core | None = None
        self.greeted = False
        self.agent_back_at: float | None = None
        self.now = 0.0
        self.taken_ports: set[int] = set()
        self.has_model = True
        self.knows_itself = True
        """Its agent can say in what state the machine is."""
        self.mute = False
        """It does not answer that question at all."""
        self.has_torch = True
        self.deaf = False
        """Its probe lives, and never comes to the rendezvous."""
        self.later = later
        self.fenced: Callable[[], None] = lambda: None
        self.reaches_head: Callable[[str, int], bool] = lambda host, port: False
        self.exclusive = True
        """A rank's folder is made with an exclusive mkdir."""
        self.trapped_until = 0.0
        self.baseline_bytes = POOL
        self.hurry: Callable[[], None] = lambda: None
        """The world's: a report should not wait for the next beat."""
        self.start_agent()

    # Life.

    @property
    def boot(self) -> str:
        return f"{self.id}-boot{self.boots}"

    @property
    def run(self) -> str:
        return f"{self.id}-run{self.runs}"

    def start_agent(self) -> None:
        self.runs += 1
        self.seq = 0
        self.greeted = False
        rows = {n: (s if b == self.boot else "gone") for n, (_, b, s) in self.disk.rows.items()}
        core = Core(
            boot=self.boot,
            holder=self.holder,
            term=self.disk.accepted.term,
            instance=self.disk.instance,
            accepted=self.disk.accepted,
            rows=rows,  # type: ignore[arg-type]
            generations=dict(self.disk.generations),
            deployments=dict(self.disk.deployments),
        )
        existing: dict[str, Existing] = {}
        for name in self.disk.folders:
            rank = self.ranks.get(name)
            row = self.disk.rows.get(name)
            if rank is None or not rank.alive:
                if row is None or row[2] == "gone":
                    continue
                # Its end was not written down: the supervisor finds it ended.
                spec = row[0]
                rank = SimRank(spec, self.now, state="gone", fell="ended while no agent watched")
                self.ranks[name] = rank
            parsed = parse_rank_name(name)
            assert parsed is not None
            existing[name] = Existing(parsed, rank.spec, rank.state)  # type: ignore[arg-type]
        self.core = machine.adopt(core, existing, frozenset(self.disk.folders))
        for name, rank in self.ranks.items():
            if rank.state == "gone" and name in existing:
                self._write_row(name, "gone")
        self.ranks = {n: r for n, r in self.ranks.items() if n in existing}
        self.later(0.001, self.end_the_dying)

    def kill_agent(self) -> None:
        self.core = None
        self.greeted = False

    def power_off(self) -> None:
        self.kill_agent()
        self.powered = False
        self.ranks = {}

    def power_on(self) -> None:
        self.powered = True
        self.boots += 1
        self.start_agent()

    # Ranks.

    def exists(self) -> list[SimRank]:
        return [rank for rank in self.ranks.values() if rank.alive]

    def rank_falls(self, name: str, reason: str, signal: int | None) -> None:
        rank = self.ranks[name]
        if rank.state != "running":
            return
        rank.state = "fallen"
        rank.fell = reason
        rank.exit = Exit(name, "leader", 1, None if signal else 0, signal, "shim", self.now, self.now)
        self._end_at(rank, self.now + 0.5)
        if self.core is not None:
            self.write_outbox(rank.exit)
            self._write_row(name, "exited")
            self.apply(RankChanged(name, "fallen"))
            self.hurry()

    def write_outbox(self, item: Exit | TaskResult) -> None:
        if not self.disk.full:
            self.disk.outbox.append(item)

    def _write_row(self, name: str, state: str) -> None:
        if not self.disk.full and name in self.disk.rows:
            spec, boot, _ = self.disk.rows[name]
            self.disk.rows[name] = (spec, boot, state)

    def _end_at(self, rank: SimRank, when: float) -> None:
        rank.dies_at = max(when, rank.stubborn_until)
        self.later(rank.dies_at - self.now, self.end_the_dying)
        if rank.dies_at > when + DEFAULTS.kill_proof_s:
            self.later(when + DEFAULTS.kill_proof_s - self.now, lambda: self._proof_fails(rank))

    def _proof_fails(self, rank: SimRank) -> None:
        """Its agent has sent SIGKILL for long enough."""
        if self.core is not None and self.ranks.get(rank.spec.name) is rank and rank.alive:
            rank.state = "unkillable"
            self.apply(RankChanged(rank.spec.name, "unkillable"))
            self.hurry()

    def end_the_dying(self) -> None:
        """What was sent SIGKILL ends. Proof is the agent's: without one nobody looks, and nobody kills."""
        now = self.now
        for name, rank in list(self.ranks.items()):
            # Moments are sums of delays: one that has come may lie a last digit before itself.
            due = rank.dies_at is not None and now >= rank.dies_at - 1e-9
            if due and rank.alive and self.core is not None:
                rank.state = "gone"
                self._write_row(name, "gone")
                self.apply(RankChanged(name, "gone"))
                self.hurry()

    # The core.

    def apply(self, event: CoreEvent) -> None:
        assert self.core is not None
        self.core, commands = machine.step(self.core, event, Instant(self.now, self.now))
        for command in commands:
            match command:
                case Kill(name) | Terminate(name):
                    rank = self.ranks.get(name)
                    if rank is not None and rank.alive and rank.state != "fallen":
                        rank.state = "stopping"
                        extra = 0.3 if isinstance(command, Terminate) else 0.05
                        self._end_at(rank, self.now + extra)
                        self.core = replace(
                            self.core,
                            ranks={
                                **self.core.ranks,
                                name: replace(self.core.ranks[name], state="stopping"),
                            },
                        )
                        self.hurry()
                case SaveFences(accepted, instance, deployments, generations):
                    if not self.disk.full:
                        self.disk.accepted = accepted
                        self.disk.instance = instance
                        self.disk.deployments = {d.name: d for d in deployments}
                        for name, generation in generations.items():
                            before = self.disk.generations.get(name, 0)
                            self.disk.generations[name] = max(before, generation)
                case Start(spec):
                    self._start(spec)
                case Forget(name):
                    self.ranks.pop(name, None)
                case Begin(task) if not (self.mute and task.kind == "facts"):
                    self.write_outbox(self._answer(task))
                    self.hurry()
                case Fence():
                    self.fenced()
                case _:
                    pass

    def _start(self, spec: RankSpec) -> None:
        if self.disk.full:
            self.apply(StartFailed(Refusal(spec.name, "ledger", "the disk is full")))
            self.hurry()
            return
        self.disk.rows[spec.name] = (spec, self.boot, "intent")
        if spec.name in self.disk.folders and self.exclusive:
            self.apply(StartFailed(Refusal(spec.name, "spent", "its folder exists")))
            return
        self.disk.folders.add(spec.name)
        self.started_names.append(spec.name)
        self.ranks[spec.name] = SimRank(spec, self.now)
        self._write_row(spec.name, "started")
        self.apply(RankChanged(spec.name, "running"))
        self.hurry()

    def _answer(self, task: object) -> TaskResult:
        args = task.args  # type: ignore[attr-defined]
        task_id = task.id  # type: ignore[attr-defined]
        if task.kind == "probe":  # type: ignore[attr-defined]
            reached = any(self.reaches_head(t["host"], t["port"]) for t in args["targets"])
            return TaskResult(task_id, ok=True, result={"reached": reached})
        if task.kind == "stacks":  # type: ignore[attr-defined]
            return TaskResult(task_id, ok=True, result={"processes": []})
        if task.kind in ("canary", "evict"):  # type: ignore[attr-defined]
            return TaskResult(task_id, ok=True)
        if task.kind == "port":  # type: ignore[attr-defined]
            ports = [
                {"port": p["port"], "for": p["for"], "free": p["port"] not in self.taken_ports}
                for p in args["ports"]
            ]
            return TaskResult(task_id, ok=True, result={"ports": ports})
        if task.kind == "facts":  # type: ignore[attr-defined]
            return TaskResult(task_id, ok=self.knows_itself, result={"wall": self.now})
        if not self.has_model:
            return TaskResult(task_id, ok=False, error="no model with a config.json")
        return TaskResult(task_id, ok=True, result={"model": {"path": "/models/tiny"}})

    # Memory: one pool, and a driver that may give it back late.

    def available(self) -> int:
        held = RANK_BYTES * len(self.exists())
        return POOL - held - (RANK_BYTES if self.now < self.trapped_until else 0)

    def baseline(self) -> int:
        if not self.exists() and self.now >= self.trapped_until:
            self.baseline_bytes = POOL
        return self.baseline_bytes

    # What it says.

    def caller(self) -> Caller:
        self.seq += 1
        return Caller(self.id, self.boot, self.run, self.seq)

    def hello(self) -> Hello:
        assert self.core is not None
        return Hello(
            caller=self.caller(),
            facts=NodeFacts(self.id, self.id, self.id, self.id, local=True),
            version="sim",
            highest_term=self.core.term,
            highest_instance=self.core.instance,
            holder=self.core.holder,
            accepted=self.core.accepted,
            generations=dict(self.core.generations),
            ledger=tuple(
                LedgerRank(spec, state if boot == self.boot else "gone")  # type: ignore[arg-type]
                for spec, boot, state in self.disk.rows.values()
            ),
            deployments=tuple(self.core.deployments.values()),
            ranks=self.reports(),
            wall=self.now,
            mono=self.now,
            lease_live=self.now < self.core.lease_until,
        )

    def accepted(self) -> Revision:
        assert self.core is not None
        return self.core.accepted if self.core.document is not None else Revision(0, 0)

    def report(self) -> tuple[Report, int]:
        assert self.core is not None
        count = len(self.disk.outbox)
        report = Report(
            caller=self.caller(),
            wall=self.now,
            mono=self.now,
            applied=self.accepted(),
            refusals=tuple(self.core.refusals.values()),
            ranks=self.reports(),
            exits=tuple(i for i in self.disk.outbox if isinstance(i, Exit)),
            results=tuple(i for i in self.disk.outbox if isinstance(i, TaskResult)),
            sample=Sample(Memory(POOL, self.available(), self.available())),
            baseline_bytes=self.baseline(),
        )
        return report, count

    def acknowledged(self, report: Report, count: int, lease_s: float) -> None:
        del self.disk.outbox[:count]
        self.apply(LeaseGiven(lease_s))
        gone = frozenset(r.name for r in report.ranks if r.state == "gone")
        if gone:
            self.apply(GoneTold(gone))

    def take(self, document: Document) -> None:
        self.apply(DocumentCame(document))
        self.hurry()

    def reports(self) -> tuple[RankReport, ...]:
        assert self.core is not None
        return tuple(self._report(name, existing) for name, existing in self.core.ranks.items())

    def _report(self, name: str, existing: Existing) -> RankReport:
        rank = self.ranks.get(name)
        if rank is None:
            return RankReport(name, existing.state)
        probe = None
        if rank.spec.rank == 0 and rank.spec.kind == "serve":
            warmed = rank.warmed_at is not None
            probe = ProbeReport(
                api_up=warmed,
                warmed=warmed,
                proof_age_s=self.now - rank.proved_at if rank.proved_at is not None else None,
                wedged="no answer" if warmed and rank.frozen else None,
            )
        return RankReport(
            name,
            rank.state if rank.state != "running" else existing.state,  # type: ignore[arg-type]
            pid=1,
            phase="warming" if rank.joined else "launching",
            progress_age_s=self.now - (rank.warmed_at or rank.born),
            exit=rank.exit,
            fell=rank.fell,
            probe=probe,
            remains=("pid 1 (python3) state D",) if rank.state == "unkillable" else (),
            condemned=rank.condemned,
            collective=rank.told,
        )

    def probe_turn(self, rank: SimRank) -> None:
        """One look at a rank of a collective probe, until it has met the others."""
        if not self.has_torch:
            self.probe_over(rank, CollectiveReport(unable="no torch"), 3)
        elif self.now >= rank.born + IMPORT_S and rank.told is None:
            rank.told = CollectiveReport("imported" if self.deaf else "met")
            self.hurry()

    def probe_over(self, rank: SimRank, told: CollectiveReport, code: int) -> None:
        rank.told = told
        self.rank_falls(rank.spec.name, f"exit code {code}", None)

    def starve(self, name: str, why: Condemned) -> None:
        """As the watch condemns a rank: the coordinator has its time, then the agent ends it."""
        self.ranks[name].condemned = why
        self.later(DEFAULTS.memory_ask_s, lambda: self.apply(MemoryShort(name, why.reason)))
        self.hurry()


def light_specs(
    name: str, generation: int, nodes: tuple[str, ...], port: int, intent: Intent
) -> tuple[RankSpec, ...]:
    """Rank specs without an engine's words: what the simulation's planner gives."""
    descriptor = Descriptor(name, intent, 0, generation, nodes, 8100)
    return tuple(
        RankSpec(
            name=f"sparkd-{name}-g{generation}-r{rank}",
            deployment=name,
            generation=generation,
            rank=rank,
            ranks=len(nodes),
            runtime="process",
            engine="default",
            args=(),
            env={},
            rendezvous=Address(nodes[0], port),
            descriptor=descriptor,
            probe=Probe(Address(nodes[0], 8100), name) if rank == 0 else None,
            memory=MemoryNeed(need_bytes=RANK_BYTES, hold_s=0.5, timeout_s=10.0),
        )
        for rank in range(len(nodes))
    )

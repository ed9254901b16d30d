"""The agent: feeds its core, carries out what the core asks for, and tells the coordinator what it sees."""

import asyncio
import logging
import os
from collections.abc import Coroutine, Mapping
from dataclasses import replace

import sparkd
from sparkd.clock import Clock
from sparkd.failpoints import passed
from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd.records.document import Document, Revision, Task
from sparkd.records.fabric import NodeFabric
from sparkd.records.rank import RankSpec
from sparkd.records.report import (
    Caller,
    Condemned,
    Hello,
    Refusal,
    Report,
    ReportAnswer,
    Sample,
    Welcome,
)
from sparkd_agent.adoption import find
from sparkd_agent.answers import Answers
from sparkd_agent.config import AgentConfig
from sparkd_agent.core import machine
from sparkd_agent.core.state import (
    Begin,
    Core,
    CoreCommand,
    CoreEvent,
    DocumentCame,
    EngineFrozen,
    Existing,
    Fence,
    Forget,
    GoneTold,
    HeadTried,
    Kill,
    LeaseGiven,
    MemoryShort,
    RankChanged,
    SaveFences,
    Start,
    StartFailed,
    Terminate,
)
from sparkd_agent.diary import Diary
from sparkd_agent.ears import Ears
from sparkd_agent.facts import gather_facts
from sparkd_agent.followed import Followed
from sparkd_agent.head import takes_connection
from sparkd_agent.ledger import Fences, Ledger
from sparkd_agent.machine import Machine
from sparkd_agent.news import News
from sparkd_agent.privileges import Offer, Privileges
from sparkd_agent.procfs import ProcFs
from sparkd_agent.ranks import Ranks
from sparkd_agent.ring import Ring
from sparkd_agent.running import RunningRank
from sparkd_agent.runtime.base import Runtime
from sparkd_agent.shm import ShmJanitor
from sparkd_agent.slow_facts import SlowFacts
from sparkd_agent.specs import checkpoint_of, gid_of, interface_of
from sparkd_agent.starter import Starter
from sparkd_agent.watch.sample import Sampler
from sparkd_agent.watch.watch import Surroundings, Watch, Watched

log = logging.getLogger("sparkd.agent")


class Agent:
    """One node's daemon, without its link: the link calls `hello`, `take`, `report` and `acknowledged`."""

    def __init__(
        self,
        config: AgentConfig,
        *,
        clock: Clock,
        procfs: ProcFs,
        privileges: Privileges,
        offer: Offer,
        runtimes: Mapping[str, Runtime],
        ledger: Ledger,
        shm: ShmJanitor,
        sampler: Sampler,
        around: Surroundings,
        ring: Ring,
        limits: Defaults = DEFAULTS,
    ) -> None:
        self.config = config
        self.urgent = asyncio.Event()
        """Set when a report should not wait for the next beat."""
        self._clock = clock
        self._procfs = procfs
        self._runtimes = runtimes
        self._ledger = ledger
        self._limits = limits
        self.watch = Watch(self, sampler, around, clock, limits)
        self._facts = gather_facts(config, self.watch.sample.memory, privileges, offer)
        self._run = os.urandom(6).hex()
        self._seq = 0
        self._ranks = Ranks(procfs, shm, clock, limits, self._rank_changed)
        self._news = News(ledger, limits)
        self._followed = Followed(config.state / "ranks", limits)
        self._diary = Diary(ring, clock, limits)
        self.slow_facts = SlowFacts(config, self._facts.runtimes, limits)
        self.answers = Answers(
            config,
            config.state / "ranks",
            ranks=self._ranks,
            watch=self.watch,
            diary=self._diary,
            machine=Machine(config, sees_all="sys_ptrace" in privileges.held),
            ears=Ears(limits),
        )
        self._starter = Starter(config, offer, runtimes, ledger)
        self._heads_tried_at = float("-inf")
        self._tasks: set[asyncio.Task[None]] = set()
        self._baseline_bytes = ledger.baseline_bytes()
        fences = ledger.fences()
        self._core = Core(
            boot=procfs.boot_id(),
            holder=config.holder,
            term=fences.accepted.term,
            instance=fences.instance,
            accepted=fences.accepted,
            rows={row.spec.name: row.state for row in ledger.ranks()},
            generations=fences.generations,
            deployments={serial.name: serial for serial in fences.deployments},
        )

    @property
    def core(self) -> Core:
        return self._core

    # Life of the daemon.

    def adopt(self) -> None:
        """Find what an earlier run of the agent started, and go on with it."""
        found = find(self._runtimes.values(), self._ledger, self._procfs)
        for runtime, handle in found.remains:
            self._spawn(runtime.stop(handle))
        ranks = {}
        for one in found.ranks:
            ranks[one.spec.name] = Existing(one.name, one.spec, "running")
            self._ranks.supervise(one.runtime, one.handle, one.spec)
            log.info("adopted %s", one.spec.name)
            passed("agent.23-adopted")
        for missing in self._ledger.unfinished() - found.folders:
            if self._core.rows.get(missing) == "gone":  # of another boot, and nothing of it was ever made
                self._ledger.ended(missing, "gone", None)
        self._core = machine.adopt(self._core, ranks, found.folders)
        passed("agent.24-adoption-done")

    async def look_after_ranks(self) -> None:
        """Once a beat: read new log lines, judge progress. Until cancelled; asleep while there is no rank."""
        while True:
            await self._ranks.occupied.wait()
            await asyncio.sleep(self._limits.beat_s)
            self._ranks.look()
            self._try_heads()
            if self._ranks:
                self._diary.write(self.watch.take_seen)
            else:
                await self._diary.end()
                if not self._ranks:
                    self._ranks.occupied.clear()

    def _try_heads(self) -> None:
        """Without a coordinator: whether what followers here follow is still there."""
        now = self._clock.now().mono
        if now < self._core.lease_until or now - self._heads_tried_at < self._limits.head_try_s:
            return
        self._heads_tried_at = now
        for rank in self._ranks:
            if rank.spec.rank > 0 and rank.spec.ranks > 1:  # of a lost ledger's ranks nothing is known
                self._spawn(self._try_head(rank.spec))

    async def _try_head(self, spec: RankSpec) -> None:
        self._apply(HeadTried(spec.name, await takes_connection(spec, self._limits.head_try_s)))

    def is_well(self) -> bool:
        """Whether every rank is looked after. If this is not true of an agent, a new one would do better."""
        blind = self._clock.now().mono - self.watch.looked_at > self._limits.watch_stall_s
        return not blind and self._ranks.are_looked_after()

    def pids(self) -> dict[str, frozenset[int]]:
        """Of the processes of each rank."""
        return self._ranks.pids()

    def in_words(self, contact: str) -> str:
        """One line for `systemctl status`."""
        ranks = [f"{rank.view.name} {rank.view.state}" for rank in self._ranks]
        return f"{contact}; {', '.join(ranks) or 'no rank'}"

    async def close(self) -> None:
        """Stop watching. The ranks live on."""
        for task in self._tasks:
            task.cancel()
        await self._ranks.close()
        self._ledger.close()
        await self.watch.close()
        await self._diary.end()

    # What the link carries.

    def hello(self, fabric: NodeFabric | None = None, images: tuple[str, ...] = ()) -> Hello:
        now = self._clock.now()
        core = self._core
        return Hello(
            caller=self.caller(),
            facts=replace(self._facts, fabric=fabric, images=images),
            version=sparkd.__version__,
            highest_term=core.term,
            highest_instance=core.instance,
            holder=core.holder,
            accepted=core.accepted,
            generations=core.generations,
            ledger=self._ledger.ranks(),
            deployments=tuple(core.deployments.values()),
            ranks=tuple(rank.report() for rank in self._ranks),
            wall=now.wall,
            mono=now.mono,
            lease_live=now.mono < core.lease_until,
        )

    def caller(self) -> Caller:
        """The next request's place in this run's history."""
        self._seq += 1
        return Caller(self.config.node_id, self._core.boot, self._run, self._seq)

    def welcomed(self, welcome: Welcome) -> None:
        self._apply(LeaseGiven(welcome.lease_s))

    def take(self, document: Document) -> str | None:
        """Gives the reason if the document was refused as a whole."""
        commands = self._apply(DocumentCame(document))
        self.urgent.set()
        return next((command.reason for command in commands if isinstance(command, Fence)), None)

    def accepted(self) -> Revision:
        """What this run has accepted; 0.0 before its first document."""
        return self._core.accepted if self._core.document is not None else Revision(0, 0)

    def report(self, rtt_s: float | None) -> tuple[Report, tuple[int, ...]]:
        """The next report, and the outbox rows that it carries."""
        now = self._clock.now()
        exits, results, rows = self._news.waiting()
        sample = self.watch.fresh()
        report = Report(
            caller=self.caller(),
            wall=now.wall,
            mono=now.mono,
            applied=self.accepted(),
            refusals=tuple(self._core.refusals.values()),
            ranks=tuple(rank.report() for rank in self._ranks),
            sample=sample,
            baseline_bytes=self._baseline(sample),
            events=self._news.events,
            exits=exits,
            results=results,
            logs=self._followed.lines(self._core.document),
            rtt_s=rtt_s,
            kernel=self.watch.untold_lines,
            tails=tuple(tail for rank in self._ranks if (tail := rank.tail()) is not None),
        )
        return report, rows

    def acknowledged(self, report: Report, rows: tuple[int, ...], given: ReportAnswer) -> None:
        self._news.told(report, rows, kept=given.acked == report.caller.seq)
        self.watch.lines_told(len(report.kernel))
        for tail in report.tails:
            if (rank := self._ranks.get(tail.rank)) is not None:
                rank.tail_told()
        for name in given.serving:
            if (rank := self._ranks.get(name)) is not None:
                rank.gang_serves()
        self._apply(LeaseGiven(given.lease_s))
        self._followed.told(report.logs)
        gone = frozenset(rank.name for rank in report.ranks if rank.state == "gone")
        if gone:
            self._apply(GoneTold(gone))

    def _baseline(self, sample: Sample) -> int | None:
        """MemAvailable when last no rank existed here; written down when one is started."""
        if not self._core.ranks and sample.memory is not None:
            self._baseline_bytes = sample.memory.available
        return self._baseline_bytes

    # What the watch asks for.

    def watched(self) -> Watched | None:
        for name, existing in self._core.ranks.items():
            rank = self._ranks.get(name)
            if rank is not None and existing.state in ("starting", "running") and not existing.stopping:
                return Watched(
                    name,
                    rank.phase,
                    rank.loaded_s(),
                    rank.spec.memory,
                    self._baseline_bytes,
                    checkpoint_of(rank.spec),
                    rank.moving(self._limits.gpu_judge_s),
                    interface_of(rank.spec),
                    gid_of(rank.spec),
                )
        return None

    def condemn(self, rank: str, why: Condemned, *, at_once: bool) -> None:
        """The kill, if it is to be at once, comes before everything else."""
        running = self._ranks.get(rank)
        if running is None or running.condemned is not None:
            return
        running.condemned = why
        if at_once or self._clock.now().mono >= self._core.lease_until:
            self._apply(MemoryShort(rank, why.reason))
        else:
            asyncio.get_running_loop().call_later(
                self._limits.memory_ask_s, lambda: self._apply(MemoryShort(rank, why.reason))
            )
        log.warning("%s is to be ended: %s", rank, why.reason)
        self.tell("memory", f"it is to be ended ({why.cause}): {why.reason}", rank)
        self.urgent.set()

    def tell(self, kind: str, reason: str, rank: str | None) -> None:
        self._news.tell(kind, reason, rank)

    # The core's commands.

    def _apply(self, event: CoreEvent) -> tuple[CoreCommand, ...]:
        self._core, commands = machine.step(self._core, event, self._clock.now())
        for command in commands:
            self._carry_out(command)
        return commands

    def _carry_out(self, command: CoreCommand) -> None:
        match command:
            case Kill(name, reason):
                self._ranks.end(name, lambda rank: rank.kill(reason))
                log.info("kill %s: %s", name, reason)
            case Terminate(name, grace_s, reason):
                log.info("terminate %s within %.0f s: %s", name, grace_s, reason)
                self._ranks.end(name, lambda rank: rank.terminate(grace_s, reason))
            case SaveFences(accepted, instance, deployments, generations):
                fences = Fences(accepted, instance, generations, deployments)
                self._news.save(lambda: self._ledger.save_fences(fences))
            case Start(spec):
                self._spawn(self._start(spec))
            case Forget(name):
                self._forget(name)
            case Begin(task):
                self._spawn(self._answer(task))
            case Fence(reason):
                log.warning("refused a document: %s", reason)
                self.tell("fenced", f"refused a document: {reason}", None)

    async def _answer(self, task: Task) -> None:
        result = await self.answers.to(task)
        if result is not None:
            self._news.post(result)
            self.urgent.set()

    async def _start(self, spec: RankSpec) -> None:
        started = await self._starter.start(spec, self._baseline_bytes, self.watch.make_room)
        if isinstance(started, Refusal):
            self._refuse(started)
            return
        runtime, handle = started
        leader = handle.leader
        self._news.save(
            lambda: self._ledger.started(
                spec.name, leader.pid if leader else None, leader.starttime if leader else None
            )
        )
        log.info("started %s", spec.name)
        rank = self._ranks.supervise(runtime, handle, spec)
        self._apply(RankChanged(spec.name, "running"))
        self._ranks.end_early(rank)
        self.urgent.set()

    def _refuse(self, refusal: Refusal) -> None:
        log.warning("refused to start %s (%s): %s", refusal.rank, refusal.code, refusal.reason)
        self._ranks.never_came(refusal.rank)
        self._news.save(lambda: self._ledger.ended(refusal.rank, "gone", None))
        self._apply(StartFailed(refusal))
        self.urgent.set()

    def _rank_changed(self, rank: RunningRank) -> None:
        """Milliseconds after anything happened to a rank. Kill first, then write, then tell."""
        view = rank.view
        if rank.wedged is not None:
            self._apply(EngineFrozen(view.name, rank.wedged))
        served = rank.served
        known = self._core.ranks.get(view.name)
        if known is not None and (known.state, known.served) != (view.state, served or known.served):
            self._apply(RankChanged(view.name, view.state, served))
            if view.state in ("fallen", "unkillable"):
                self._news.save(lambda: self._ledger.ended(view.name, "exited", view.exit))
            elif view.state == "gone":
                self._news.save(lambda: self._ledger.ended(view.name, "gone", view.exit))
                # All that ran is proved gone; what the runtime keeps of it is of no use any more.
                self._spawn(self._ranks.runtime_of(rank).stop(rank.handle))
        if view.fell is not None:
            self._news.post_exits(view.exits)
        self.urgent.set()

    def _forget(self, name: str) -> None:
        """Out of the reports. Logs of the last few generations stay for people to read."""
        rank = self._ranks.forget(name)
        if rank is not None:
            self._spawn(rank.close())
        self._news.forget(name)
        self._news.save(self._prune)

    def _prune(self) -> None:
        for old in self._ledger.prune(self._limits.generations_kept):
            for runtime in self._runtimes.values():
                runtime.forget(old)
            passed("agent.22-forgotten")

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

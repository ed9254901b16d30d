"""The agent: feeds its core, carries out what the core asks for, and tells the coordinator what it sees."""

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import sparkd
from sparkd.clock import Clock
from sparkd.errors import RankNotStarted, Spent, UsageError
from sparkd.failpoints import passed
from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd.records.document import Document, Revision, Task
from sparkd.records.fabric import NodeFabric
from sparkd.records.facts import MachineFacts
from sparkd.records.intent import Descriptor, Intent
from sparkd.records.names import parse_rank_name
from sparkd.records.rank import Address, RankSpec
from sparkd.records.report import (
    AgentEvent,
    Caller,
    Condemned,
    Exit,
    Hello,
    LogChunk,
    Refusal,
    RefusalCode,
    Report,
    ReportAnswer,
    Sample,
    TaskResult,
    Welcome,
)
from sparkd_agent.account import Account
from sparkd_agent.config import AgentConfig, EngineConfig
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
from sparkd_agent.ears import Ears
from sparkd_agent.fabric import discover
from sparkd_agent.facts import gather_facts
from sparkd_agent.head import takes_connection
from sparkd_agent.ledger import Fences, Ledger
from sparkd_agent.logs import RankLog
from sparkd_agent.machine import Machine
from sparkd_agent.nccl_conf import nccl_files
from sparkd_agent.placed import files_root, place_files
from sparkd_agent.privileges import Offer, Privileges
from sparkd_agent.procfs import ProcFs
from sparkd_agent.rankfolder import RankFolder
from sparkd_agent.ring import Ring
from sparkd_agent.running import RunningRank
from sparkd_agent.runtime.base import Launch, RankHandle, Runtime, make_inner_launch, make_launch
from sparkd_agent.shm import ShmJanitor
from sparkd_agent.tasks import answer
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
        self.ranks_dir = config.state / "ranks"
        self.urgent = asyncio.Event()
        """Set when a report should not wait for the next beat."""
        self._clock = clock
        self._procfs = procfs
        self._offer = offer
        self._runtimes = runtimes
        self._ledger = ledger
        self._shm = shm
        self._ring = ring
        self._limits = limits
        self.watch = Watch(self, sampler, around, clock, limits)
        self.ears = Ears(limits)
        self._machine = Machine(config, sees_all="sys_ptrace" in privileges.held)
        self._facts = gather_facts(config, self.watch.sample.memory, privileges, offer)
        self._run = os.urandom(6).hex()
        self._seq = 0
        self._running: dict[str, RunningRank] = {}
        self._runtime_of: dict[str, Runtime] = {}
        self._occupied = asyncio.Event()
        self._looked_at = clock.now().mono
        self._heads_tried_at = float("-inf")
        self._written_at = float("-inf")
        self._writing: asyncio.Task[None] | None = None
        self._early_end: dict[str, Callable[[RunningRank], None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._events: list[AgentEvent] = []
        self._unsaved: list[Exit | TaskResult] = []
        """News that the ledger would not take: told all the same, while this run lives."""
        self._follow_at: dict[str, tuple[int, int]] = {}
        self._saved_exits: set[tuple[str, int]] = set()
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
        specs = {row.spec.name: row.spec for row in self._ledger.ranks()}
        unfinished = self._ledger.unfinished()
        ranks: dict[str, Existing] = {}
        folders: set[str] = set()
        listed = [(runtime, handle) for runtime in self._runtimes.values() for handle in runtime.list()]
        for runtime, handle in listed:
            folders.add(handle.name)
            name = parse_rank_name(handle.name)
            if name is None:
                continue
            if handle.name in specs and handle.name not in unfinished:
                self._spawn(runtime.stop(handle))  # an earlier run may have died before it tidied up
                continue
            spec = specs.get(handle.name)
            if spec is None:
                if not self._is_alive(handle):
                    self._spawn(runtime.stop(handle))
                    continue
                # The ledger was lost. What the rank was is lost with it, that it runs is not.
                spec = unknown_spec(handle.name)
            ranks[handle.name] = Existing(name, spec, "running")
            self._supervise(runtime, handle, spec)
            log.info("adopted %s", handle.name)
            passed("agent.23-adopted")
        for missing in unfinished - folders:
            if self._core.rows.get(missing) == "gone":  # of another boot, and nothing of it was ever made
                self._ledger.ended(missing, "gone", None)
        self._core = machine.adopt(self._core, ranks, frozenset(folders))
        passed("agent.24-adoption-done")

    def _is_alive(self, handle: RankHandle) -> bool:
        known = (ref for ref in (handle.shim, handle.leader) if ref is not None)
        return handle.coming_up or any(map(self._procfs.alive, known))

    async def look_after_ranks(self) -> None:
        """Once a beat: read new log lines, judge progress. Until cancelled; asleep while there is no rank."""
        while True:
            await self._occupied.wait()
            await asyncio.sleep(self._limits.beat_s)
            for rank in self._running.values():
                rank.look()
            self._looked_at = self._clock.now().mono
            self._try_heads()
            await self._write_down()
            if not self._running:
                self._occupied.clear()

    def _try_heads(self) -> None:
        """Without a coordinator: whether what followers here follow is still there."""
        now = self._clock.now().mono
        if now < self._core.lease_until or now - self._heads_tried_at < self._limits.head_try_s:
            return
        self._heads_tried_at = now
        for rank in self._running.values():
            if rank.spec.rank > 0 and rank.spec.ranks > 1:  # of a lost ledger's ranks nothing is known
                self._spawn(self._try_head(rank.spec))

    async def _try_head(self, spec: RankSpec) -> None:
        self._apply(HeadTried(spec.name, await takes_connection(spec, self._limits.head_try_s)))

    async def _write_down(self) -> None:
        """What the watch saw, for the boot after this one. It never waits for the last writing to end."""
        now = self._clock.now().mono
        if not self._running:
            await self._end_ring()
        elif now - self._written_at >= self._limits.ring_s and (
            self._writing is None or self._writing.done()
        ):
            seen = self.watch.take_seen()
            if not seen:
                return  # the first one is written at once: a load may take the node down in seconds
            self._written_at = now
            self._writing = asyncio.get_running_loop().create_task(asyncio.to_thread(self._ring.keep, seen))

    async def _end_ring(self) -> None:
        """After the last writing: that takes the mark of a good end away."""
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=self._limits.ring_s)
        await asyncio.to_thread(self._ring.ended_well)

    def is_well(self) -> bool:
        """Whether every rank is looked after. If this is not true of an agent, a new one would do better."""
        late = self._clock.now().mono - self._looked_at > self._limits.watch_stall_s
        blind = self._clock.now().mono - self.watch.looked_at > self._limits.watch_stall_s
        return (
            not blind
            and not (late and self._occupied.is_set())
            and not any(rank.is_abandoned for rank in self._running.values())
        )

    def pids(self) -> dict[str, frozenset[int]]:
        """Of the processes of each rank."""
        return {name: rank.pids() for name, rank in self._running.items()}

    def in_words(self, contact: str) -> str:
        """One line for `systemctl status`."""
        ranks = [f"{rank.view.name} {rank.view.state}" for rank in self._running.values()]
        return f"{contact}; {', '.join(ranks) or 'no rank'}"

    async def close(self) -> None:
        """Stop watching. The ranks live on."""
        for task in (*self._tasks, *(rank.task for rank in self._running.values() if rank.task)):
            task.cancel()
        for rank in self._running.values():
            await rank.close()
        self._ledger.close()
        await self.watch.close()
        await self._end_ring()

    # What the link carries.

    async def fabric(self) -> NodeFabric | None:
        """As it is now; None in a local set. Sysfs waits for drivers: one that hangs holds up nobody here."""
        if self.config.local:
            return None
        try:
            async with asyncio.timeout(self._limits.resolve_s):
                return await asyncio.to_thread(discover, nccl_files=nccl_files(self.config))
        except TimeoutError:
            return NodeFabric()

    def hello(self, fabric: NodeFabric | None = None) -> Hello:
        now = self._clock.now()
        core = self._core
        return Hello(
            caller=self.caller(),
            facts=replace(self._facts, fabric=fabric),
            version=sparkd.__version__,
            highest_term=core.term,
            highest_instance=core.instance,
            holder=core.holder,
            accepted=core.accepted,
            generations=core.generations,
            ledger=self._ledger.ranks(),
            deployments=tuple(core.deployments.values()),
            ranks=tuple(rank.report() for rank in self._running.values()),
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
        outbox = self._ledger.outbox()
        sample = self.watch.fresh()
        report = Report(
            caller=self.caller(),
            wall=now.wall,
            mono=now.mono,
            applied=self.accepted(),
            refusals=tuple(self._core.refusals.values()),
            ranks=tuple(rank.report() for rank in self._running.values()),
            sample=sample,
            baseline_bytes=self._baseline(sample),
            events=tuple(self._events),
            exits=(
                *(row.exit for row in outbox if row.exit is not None),
                *(item for item in self._unsaved if isinstance(item, Exit)),
            ),
            results=(
                *(row.result for row in outbox if row.result is not None),
                *(item for item in self._unsaved if isinstance(item, TaskResult)),
            ),
            logs=self._followed_lines(),
            rtt_s=rtt_s,
            kernel=self.watch.untold_lines,
            tails=tuple(tail for rank in self._running.values() if (tail := rank.tail()) is not None),
        )
        return report, tuple(row.seq for row in outbox)

    def acknowledged(self, report: Report, rows: tuple[int, ...], given: ReportAnswer) -> None:
        if given.acked == report.caller.seq:
            self._save(lambda: self._ledger.acknowledge(rows))
            told = (*report.exits, *report.results)
            self._unsaved = [item for item in self._unsaved if item not in told]
        del self._events[: len(report.events)]
        self.watch.lines_told(len(report.kernel))
        for tail in report.tails:
            if tail.rank in self._running:
                self._running[tail.rank].tail_told()
        for name in given.serving:
            if name in self._running:
                self._running[name].gang_serves()
        self._apply(LeaseGiven(given.lease_s))
        for chunk in report.logs:
            begin, _ = self._follow_at.get(chunk.rank, (0, 0))
            self._follow_at[chunk.rank] = (begin, chunk.offset + len(chunk.text.encode()))
        gone = frozenset(rank.name for rank in report.ranks if rank.state == "gone")
        if gone:
            self._apply(GoneTold(gone))

    def _baseline(self, sample: Sample) -> int | None:
        """MemAvailable when last no rank existed here; written down when one is started."""
        if not self._core.ranks and sample.memory is not None:
            self._baseline_bytes = sample.memory.available
        return self._baseline_bytes

    def _followed_lines(self) -> tuple[LogChunk, ...]:
        document = self._core.document
        if document is None or not document.follow:
            return ()
        chunks = []
        for follow in document.follow:
            begin, at = self._follow_at.get(follow.rank, (-1, 0))
            if begin != follow.offset:
                begin, at = follow.offset, follow.offset
                self._follow_at[follow.rank] = (begin, at)
            if parse_rank_name(follow.rank) is None or not (self.ranks_dir / follow.rank).is_dir():
                continue
            found = RankLog(RankFolder(self.ranks_dir / follow.rank).log).follow(
                at, self._limits.report_log_bytes
            )
            if found.data:
                text = found.data.decode(errors="replace")
                chunks.append(LogChunk(follow.rank, found.offset, text, found.skipped_bytes))
        return tuple(chunks)

    # What the watch asks for.

    def watched(self) -> Watched | None:
        for name, existing in self._core.ranks.items():
            rank = self._running.get(name)
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
                )
        return None

    def condemn(self, rank: str, why: Condemned, *, at_once: bool) -> None:
        """The kill, if it is to be at once, comes before everything else."""
        running = self._running.get(rank)
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
        if len(self._events) < self._limits.outbox_batch:
            self._events.append(AgentEvent(kind, reason, time.time(), rank))

    # The core's commands.

    def _apply(self, event: CoreEvent) -> tuple[CoreCommand, ...]:
        self._core, commands = machine.step(self._core, event, self._clock.now())
        for command in commands:
            self._carry_out(command)
        return commands

    def _carry_out(self, command: CoreCommand) -> None:
        match command:
            case Kill(name, reason):
                self._end(name, lambda rank: rank.kill(reason))
                log.info("kill %s: %s", name, reason)
            case Terminate(name, grace_s, reason):
                log.info("terminate %s within %.0f s: %s", name, grace_s, reason)
                self._end(name, lambda rank: rank.terminate(grace_s, reason))
            case SaveFences(accepted, instance, deployments, generations):
                self._save(
                    lambda: self._ledger.save_fences(Fences(accepted, instance, generations, deployments))
                )
            case Start(spec):
                self._spawn(self._start(spec))
            case Forget(name):
                self._forget(name)
            case Begin(task):
                self._spawn(self._answer(task))
            case Fence(reason):
                log.warning("refused a document: %s", reason)
                self.tell("fenced", f"refused a document: {reason}", None)

    def _end(self, name: str, how: Callable[[RunningRank], None]) -> None:
        rank = self._running.get(name)
        if rank is None:
            self._early_end[name] = (
                how  # its start is on the way; it ends as soon as there is something to end
            )
        else:
            how(rank)

    async def _answer(self, task: Task) -> None:
        if task.kind == "canary":
            rank = self._running.get(str(task.args.get("rank")))
            if rank is not None:
                rank.ask_pulse()
            return  # its answer is the proof's age in the next reports
        if task.kind == "stacks":
            rank = self._running.get(str(task.args.get("rank")))
            if rank is None:
                result = TaskResult(task.id, ok=False, error="it does not run on this node")
            else:
                within_s = task.args.get("within_s")
                told = await rank.stacks(float(within_s) if within_s is not None else None)
                result = TaskResult(task.id, ok=True, result={"processes": told})
            self._post(result)
            self.urgent.set()
            return
        if task.kind == "evict":
            refused = await self.watch.drop_cache("memory of the last generation has not come back")
            self._post(TaskResult(task.id, ok=refused is None, error=refused))
            self.urgent.set()
            return
        if task.kind == "blackbox":
            self._post(await asyncio.to_thread(self._last_boot, task.id))
            self.urgent.set()
            return
        result = await asyncio.to_thread(
            answer, task, self.config, self.ranks_dir, self.look_over(), self.ears
        )
        self._post(result)
        self.urgent.set()

    def look_over(self) -> Callable[[], MachineFacts]:
        """For a thread: what only this one may ask is asked now."""
        own = frozenset(pid for rank in self._running.values() for pid in rank.pids())
        return partial(self._machine.look_over, own, self.watch.gpus())

    def _last_boot(self, task: str) -> TaskResult:
        try:
            return TaskResult(task, ok=True, result={"records": self._ring.records()})
        except OSError as error:
            return TaskResult(task, ok=False, error=str(error))

    async def _start(self, spec: RankSpec) -> None:
        engine = self.config.engines.get(spec.engine)
        if spec.runtime != "docker" and (engine is None or not os.access(engine.python, os.X_OK)):
            where = engine.python if engine else f"[engine.{spec.engine}]"
            self._refuse(spec, "engine", f"this node has no engine at {where}")
            return
        try:
            self._ledger.intend(spec, self._baseline_bytes)
        except sqlite3.Error as error:
            self._refuse(spec, "ledger", f"the intent cannot be written: {error}")
            return
        account = self._offer.account
        try:
            place_files(files_root(self.config.state, account), spec.descriptor.intent.files)
        except (OSError, ValueError) as error:
            self._refuse(spec, "not-started", f"the profile's files cannot be put in place: {error}")
            return
        runtime = self._runtimes.get(spec.runtime)
        if runtime is None:
            offered = ", ".join(self._offer.runtimes) or "none"
            self._refuse(spec, "not-started", f"this node has no runtime {spec.runtime} (it has: {offered})")
            return
        await self.watch.make_room(spec.memory, checkpoint_of(spec))
        try:
            handle = await runtime.start(spec, self._launch_of(spec, engine, account))
        except Spent as error:
            self._refuse(spec, "spent", str(error))
            return
        except RankNotStarted as error:
            self._refuse(spec, "not-started", str(error), error.cause)
            return
        leader = handle.leader
        self._save(
            lambda: self._ledger.started(
                spec.name, leader.pid if leader else None, leader.starttime if leader else None
            )
        )
        log.info("started %s", spec.name)
        rank = self._supervise(runtime, handle, spec)
        self._apply(RankChanged(spec.name, "running"))
        early = self._early_end.pop(spec.name, None)
        if early is not None:
            early(rank)
        self.urgent.set()

    def _launch_of(self, spec: RankSpec, engine: EngineConfig | None, account: Account | None) -> Launch:
        if engine is None or spec.runtime == "docker":
            return make_inner_launch(spec, rank_env=self.config.rank_env, account=account)
        return make_launch(
            spec,
            engine.command_of(spec.kind),
            agent_env=os.environ,
            rank_env=self.config.rank_env,
            cwd=str(self.config.state) if account is None else account.working_folder,
            account=account,
        )

    def _refuse(self, spec: RankSpec, code: RefusalCode, reason: str, cause: str = "") -> None:
        log.warning("refused to start %s (%s): %s", spec.name, code, reason)
        self._early_end.pop(spec.name, None)
        self._save(lambda: self._ledger.ended(spec.name, "gone", None))
        self._apply(StartFailed(Refusal(spec.name, code, reason, cause)))
        self.urgent.set()

    def _supervise(self, runtime: Runtime, handle: RankHandle, spec: RankSpec) -> RunningRank:
        rank = RunningRank(
            handle,
            spec,
            clock=self._clock,
            procfs=self._procfs,
            shm=self._shm,
            on_change=self._rank_changed,
            limits=self._limits,
        )
        self._running[handle.name] = rank
        self._runtime_of[handle.name] = runtime
        if not self._occupied.is_set():
            self._looked_at = self._clock.now().mono
            self._occupied.set()
        rank.begin()
        return rank

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
                self._save(lambda: self._ledger.ended(view.name, "exited", view.exit))
            elif view.state == "gone":
                self._save(lambda: self._ledger.ended(view.name, "gone", view.exit))
                # All that ran is proved gone; what the runtime keeps of it is of no use any more.
                self._spawn(self._runtime_of[view.name].stop(rank.handle))
        for exit_ in view.exits:
            if view.fell is not None and (exit_.rank, exit_.pid) not in self._saved_exits:
                self._saved_exits.add((exit_.rank, exit_.pid))
                self._post(exit_)
        self.urgent.set()

    def _forget(self, name: str) -> None:
        """Out of the reports. Logs of the last few generations stay for people to read."""
        rank = self._running.pop(name, None)
        self._runtime_of.pop(name, None)
        if rank is not None:
            self._spawn(rank.close())
        self._saved_exits = {key for key in self._saved_exits if key[0] != name}
        self._save(self._prune)

    def _prune(self) -> None:
        for old in self._ledger.prune(self._limits.generations_kept):
            for runtime in self._runtimes.values():
                runtime.forget(old)
            passed("agent.22-forgotten")

    def _post(self, item: Exit | TaskResult) -> None:
        if not self._save(lambda: self._ledger.post(item)):
            self._unsaved = [*self._unsaved, item][-self._limits.outbox_batch :]

    def _save(self, write: Callable[[], object]) -> bool:
        """A ledger that cannot be written keeps nothing from being killed or told. Whether it was written."""
        try:
            write()
        except sqlite3.Error as error:
            log.error("the ledger cannot be written: %s", error)  # noqa: TRY400 - a full disk needs no trace
            self.tell("ledger", f"the ledger cannot be written: {error}", None)
            return False
        return True

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def checkpoint_of(spec: RankSpec) -> Path | None:
    """`serve MODEL …` (see `plan`): the folder of the checkpoint, if it is one."""
    return Path(spec.args[1]) if len(spec.args) > 1 and spec.args[0] == "serve" else None


def interface_of(spec: RankSpec) -> str | None:
    """By which it meets the others (see `sparkd.fabric`), loopback aside."""
    name = spec.env.get("GLOO_SOCKET_IFNAME")
    return name if name != "lo" else None


def unknown_spec(name: str) -> RankSpec:
    """A stand-in for the spec of a rank whose ledger row is lost: enough to end it and to name it."""
    parsed = parse_rank_name(name)
    if parsed is None:
        raise UsageError(f"{name} is no rank's name")
    nothing = Intent(profile_name="", profile={})
    descriptor = Descriptor(parsed.deployment, nothing, 0, parsed.generation, (), 0)
    return RankSpec(
        name=name,
        deployment=parsed.deployment,
        generation=parsed.generation,
        rank=parsed.rank,
        ranks=0,
        runtime="process",
        engine="",
        args=(),
        env={},
        rendezvous=Address("", 0),
        descriptor=descriptor,
    )

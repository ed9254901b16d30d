"""The reconciler: feeds what happens to the fleet machine, stores, then shows. It decides nothing."""

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from secrets import token_hex
from typing import Any, TypeVar

from sparkd.clock import Clock, Instant
from sparkd.coordinator import view
from sparkd.coordinator.events import EventLog
from sparkd.coordinator.incidents import IncidentFiles, Incidents
from sparkd.coordinator.keys import VARIABLE as API_KEY_VARIABLE
from sparkd.coordinator.keys import KeyRing
from sparkd.coordinator.pulse import SendPulse, send_pulse
from sparkd.coordinator.store import Changes, Store
from sparkd.errors import Unavailable
from sparkd.failpoints import passed
from sparkd.fleet import collectives, machine, members
from sparkd.fleet.nodes import Node
from sparkd.fleet.state import Commands, ErrandDone, Fleet, NodeSaid, Superseded, Told
from sparkd.gang.collective import CollectiveAsk
from sparkd.gang.state import Complain, PendingTask, PulseEndpoint, Say, WriteIncident
from sparkd.records.collective import CollectiveTest
from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd.records.document import Document, Follow, Revision, Task, TaskKind
from sparkd.records.event import Event
from sparkd.records.incident import Incident
from sparkd.records.intent import Intent
from sparkd.records.rank import Probe
from sparkd.records.report import Caller, Hello, LogChunk, Report, ReportAnswer, TaskResult, Welcome
from sparkd.records.status import Status
from sparkd.records.verdict import Verdict

log = logging.getLogger("sparkd.coordinator")

T = TypeVar("T")


class Reconciler:
    """Owns the fleet's state. Every change goes through `_apply`: step, commit, publish, in that order.

    Methods run on the event loop and never wait for I/O except the database's commit, so that no two steps
    overlap. Raises what the fleet machine raises; Unavailable when the database cannot be written, and then
    nothing has changed.
    """

    def __init__(
        self,
        fleet: Fleet,
        store: Store,
        clock: Clock,
        keys: KeyRing,
        *,
        limits: Defaults = DEFAULTS,
        on_superseded: Callable[[str], None] = lambda _: None,
        pulse: SendPulse = send_pulse,
        certificates: Mapping[str, Verdict] | None = None,
        incident_files: IncidentFiles | None = None,
    ) -> None:
        """`certificates`: what is wrong with those of nodes, by node id, as it comes and goes."""
        self.fleet = fleet
        self.events = EventLog(store.events())
        self._store = store
        self._keys = keys
        self._clock = clock
        self._limits = limits
        self._on_superseded = on_superseded
        self._pulse = pulse
        self._pulses: dict[str, asyncio.Task[None]] = {}
        self._event_number = 0
        self._polls: dict[str, set[asyncio.Event]] = {}
        self._errands: dict[str, asyncio.Future[TaskResult]] = {}
        self._log_readers: dict[str, set[asyncio.Queue[LogChunk]]] = {}
        self.storage_error: str | None = None
        self._certificates = {} if certificates is None else certificates
        self._closing = False
        self._ticked_at = clock.now().mono
        self._incidents = Incidents(
            store,
            self.events,
            clock,
            incident_files,
            fleet=lambda: self.fleet,
            ask=self.ask,
            call=self._have_call,
            limits=limits,
        )

    # Agents.

    def hello(self, hello: Hello) -> Welcome:
        return self._apply(lambda fleet, now: machine.hello(fleet, hello, now, self._limits))

    def report(self, report: Report) -> ReportAnswer:
        node = self.fleet.nodes.get(report.caller.node)
        if node is not None:
            self._incidents.hear(node, report)
        answer = self._apply(lambda fleet, now: machine.report(fleet, report, now, self._limits))
        self._incidents.look_for_a_return(report)
        for chunk in report.logs:
            for queue in self._log_readers.get(chunk.rank, ()):
                if not queue.full():
                    queue.put_nowait(chunk)
        return answer

    async def document(self, caller: Caller, after: Revision) -> Document | None:
        """The node's newest document as soon as it is newer than `after`; None after the poll's time.

        Raises NeedsHello, also when another run of the agent says hello while this one waits.
        """
        wake = asyncio.Event()
        waiting = self._polls.setdefault(caller.node, set())
        deadline = self._clock.now().mono + self._limits.document_poll_s
        waiting.add(wake)
        try:
            while True:
                wake.clear()
                machine.check_greeted(self.fleet, caller)
                document = self.fleet.documents.get(caller.node)
                if document is not None and document.order > after:
                    return document
                rest = deadline - self._clock.now().mono
                if rest <= 0 or self._closing:
                    return None
                try:
                    await asyncio.wait_for(wake.wait(), rest)
                except TimeoutError:
                    return None
        finally:
            waiting.discard(wake)

    # People.

    def up(self, name: str, intent: Intent) -> str:
        return self._apply(lambda fleet, now: machine.up(fleet, name, intent, now, self._limits))

    def down(self, name: str) -> None:
        self._apply(lambda fleet, now: (*machine.down(fleet, name, now, self._limits), None))

    def restart(self, name: str, generation: int) -> None:
        self._apply(lambda fleet, now: (*machine.restart(fleet, name, generation, now, self._limits), None))

    def announce(self, reason: str) -> None:
        """Say something of the coordinator itself, as an event."""
        said = NodeSaid("", reason, kind="coordinator")
        self._apply(lambda fleet, _: (fleet, (said,), None))

    def drain(self, node: str, *, drained: bool) -> None:
        self._apply(lambda fleet, now: (*machine.drain(fleet, node, drained=drained, now=now), None))

    def enrol(self, node_id: str, name: str) -> None:
        self._apply(lambda fleet, _: (*members.enrol(fleet, node_id, name), None))

    def removable(self, name: str) -> Node:
        """Raises as `members.removable`."""
        return members.removable(self.fleet, name)

    def remove(self, node_id: str) -> None:
        self._apply(lambda fleet, _: (*members.remove(fleet, node_id), None))

    async def settle(self) -> None:
        """Until every node in contact has accepted its newest document, at most one beat."""
        deadline = self._clock.now().mono + self._limits.beat_s
        while self._clock.now().mono < deadline:
            nodes = [node for node in self.fleet.nodes.values() if node.in_contact]
            if all(node.settled for node in nodes):
                return
            await asyncio.sleep(self._limits.settle_poll_s)

    async def ask(
        self, node_id: str, kind: TaskKind, args: Mapping[str, Any], within_s: float
    ) -> TaskResult | None:
        """Ask a node something for a person. None when it is out of contact or does not answer in time."""
        node = self.fleet.nodes.get(node_id)
        if node is None or not node.in_contact:
            return None
        task = Task(f"{kind}.{node_id}.{token_hex(6)}", kind, dict(args), within_s)
        pending = PendingTask(node_id, task, self._clock.now().mono + within_s)
        future: asyncio.Future[TaskResult] = asyncio.get_running_loop().create_future()
        self._errands[task.id] = future
        try:
            self._apply(lambda fleet, _: (machine.send_errand(fleet, pending), (), None))
            return await asyncio.wait_for(future, within_s)
        except TimeoutError:
            return None
        finally:
            self._errands.pop(task.id, None)

    def begin_probe(self, ask: CollectiveAsk, nodes: Sequence[str], port: int, most_bytes: int) -> int:
        """Its number. It runs until `end_probe`."""

        def step(fleet: Fleet, now: Instant) -> tuple[Fleet, Commands, int]:
            fleet, number = collectives.begin(
                fleet, ask, nodes, port=port, most_bytes=most_bytes, now=now, limits=self._limits
            )
            return fleet, (), number

        return self._apply(step)

    def look_at_probe(self, number: int) -> CollectiveTest:
        def step(fleet: Fleet, now: Instant) -> tuple[Fleet, Commands, CollectiveTest]:
            fleet, test = collectives.look(fleet, number, now, self._limits)
            return fleet, (), test

        return self._apply(step)

    def end_probe(self, number: int) -> None:
        self._apply(lambda fleet, _: (collectives.end(fleet, number), (), None))

    async def _have_call(self, nodes: Sequence[str]) -> tuple[Verdict, ...]:
        from sparkd.coordinator.fabric import fabric_test  # noqa: PLC0415 - it asks through a reconciler

        return (await fabric_test(self, nodes)).verdicts

    def read_log(self, node: str, rank: str, offset: int) -> "asyncio.Queue[LogChunk]":
        """Have a node send a rank's lines from `offset` on; they arrive in the queue until `unread_log`."""
        queue: asyncio.Queue[LogChunk] = asyncio.Queue(maxsize=1000)
        self._log_readers.setdefault(rank, set()).add(queue)
        self._follow(node, rank, offset)
        return queue

    def unread_log(self, node: str, rank: str, queue: "asyncio.Queue[LogChunk]") -> None:
        readers = self._log_readers.get(rank, set())
        readers.discard(queue)
        if not readers:
            self._log_readers.pop(rank, None)
            self._follow(node, rank, None)

    def _follow(self, node: str, rank: str, offset: int | None) -> None:
        rest = tuple(f for f in self.fleet.follows.get(node, ()) if f.rank != rank)
        wanted = rest if offset is None else (*rest, Follow(rank, offset))
        self._apply(lambda fleet, _: (machine.follow(fleet, node, wanted), (), None))

    def _begin_pulse(self, deployment: str, probe: Probe) -> None:
        if deployment not in self._pulses:
            self._pulses[deployment] = asyncio.get_running_loop().create_task(
                self._do_pulse(deployment, probe)
            )

    async def _do_pulse(self, deployment: str, probe: Probe) -> None:
        specs = self.fleet.gangs[deployment].record.specs
        key = specs[0].secrets.get(API_KEY_VARIABLE) if specs else None
        try:
            pulsed = await self._pulse(probe, key)
            self._apply(
                lambda fleet, now: (
                    *machine.endpoint_pulsed(fleet, deployment, pulsed, now, self._limits),
                    None,
                )
            )
        finally:
            del self._pulses[deployment]

    # Time.

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            await asyncio.sleep(self._limits.tick_s)
            try:
                self._apply(lambda fleet, now: (*machine.tick(fleet, now, self._limits), None))
                self._look_after_storage()
                self._incidents.complete()
            except Unavailable as error:
                log.error("%s", error)  # noqa: TRY400 - the story is in the error; a trace adds nothing
            self._ticked_at = self._clock.now().mono

    def is_well(self) -> bool:
        """Whether its deadlines are looked at. A new coordinator would do better than one that does not."""
        return self._clock.now().mono - self._ticked_at < self._limits.watch_stall_s

    def in_words(self) -> str:
        """One line for `systemctl status`."""
        near = sum(node.in_contact for node in self.fleet.nodes.values())
        return (
            f"term {self.fleet.term}; {len(self.fleet.gangs)} deployments; "
            f"{near} of {len(self.fleet.nodes)} nodes in contact"
        )

    def _look_after_storage(self) -> None:
        """A change that failed may never be asked for again: nothing else would notice the room."""
        if self.storage_error is None:
            return
        with contextlib.suppress(sqlite3.Error):
            self._store.check()
            self.storage_error = None
            log.info("the database can be written again")

    def close(self) -> None:
        """Answer every waiting poll and end every stream."""
        self._closing = True
        self.events.close()
        self._incidents.close()
        for pulse in self._pulses.values():
            pulse.cancel()
        for waiting in self._polls.values():
            for wake in waiting:
                wake.set()

    def now(self) -> Instant:
        return self._clock.now()

    def status(self) -> Status:
        told = view.status(self.fleet, self.now(), self.key_files(), self._certificates)
        if self.storage_error is None:
            return told
        why = self.storage_error
        return replace(told, deployments=tuple(view.unwritten(one, why) for one in told.deployments))

    def key_files(self) -> dict[str, str]:
        """Where the API keys lie, by deployment; only of those that need one now."""
        gangs = self.fleet.gangs.values()
        return {
            gang.name: str(self._keys.path(gang.name))
            for gang in gangs
            if gang.record.specs and gang.record.specs[0].secrets
        }

    # The one way anything changes.

    def _apply(self, step: Callable[[Fleet, Instant], tuple[Fleet, Commands, T]]) -> T:
        now = self._clock.now()
        old = self.fleet
        new, commands, answer = step(old, now)
        superseded = next((c for c in commands if isinstance(c, Superseded)), None)
        if superseded is not None:
            self._on_superseded(superseded.reason)
            return answer
        changes = self._changes(old, new, commands, now)
        if changes:
            try:
                self._store.commit(changes)
            except sqlite3.Error as error:
                self.storage_error = str(error)
                raise Unavailable(f"the coordinator cannot write its database: {error}") from error
            self.storage_error = None
        self.fleet = new
        self._show(old, new, changes, commands)
        if changes:
            passed("coordinator.6-shown")
        return answer

    def _changes(self, old: Fleet, new: Fleet, commands: Commands, now: Instant) -> Changes:
        records = tuple(
            gang.record
            for name, gang in new.gangs.items()
            if gang.record.serial > 0 and (name not in old.gangs or old.gangs[name].record is not gang.record)
        )
        events: list[Event] = []
        incidents: list[tuple[str, int, Incident]] = []
        for command in commands:
            match command:
                case Told(deployment, generation, Say() as said):
                    events.append(self._event(new, now, said, deployment, generation))
                case Told(deployment, generation, WriteIncident() as incident):
                    told = self._incidents.begin(incident, new.gangs[deployment].record, new, now)
                    incidents.append((deployment, generation, told))
                case NodeSaid(node, reason, from_, to, kind):
                    name = new.nodes[node].name if node in new.nodes else (node or None)
                    said = Say(kind, reason, name, None, from_, to)
                    events.append(self._event(new, now, said, None, None))
                case _:
                    pass
        life = (new.term, new.instance) if new.term != old.term else None
        drained = new.drained if new.drained != old.drained else None
        return Changes(records, tuple(events), tuple(incidents), life, drained)

    def _event(
        self, fleet: Fleet, now: Instant, said: Say, deployment: str | None, generation: int | None
    ) -> Event:
        self._event_number += 1
        node = fleet.nodes[said.node].name if said.node in fleet.nodes else said.node
        return Event(
            id=f"{fleet.term}-{self._event_number}",
            at=now.wall,
            kind=said.kind,
            reason=said.reason,
            deployment=deployment,
            generation=generation,
            node=node,
            rank=said.rank,
            from_=said.from_,
            to=said.to,
        )

    def _show(self, old: Fleet, new: Fleet, changes: Changes, commands: Commands) -> None:
        for event in changes.events:
            where = "/".join(str(part) for part in (event.deployment, event.node) if part)
            step = f" {event.from_ or ''} -> {event.to}" if event.to else ""
            log.info("%s%s %s: %s", f"{where} " if where else "", event.kind + step, event.id, event.reason)
        if changes.events:
            self.events.append(changes.events)
        self._incidents.file(changes.incidents)
        for command in commands:
            if isinstance(command, ErrandDone):
                future = self._errands.get(command.result.id)
                if future is not None and not future.done():
                    future.set_result(command.result)
            elif isinstance(command, Told) and isinstance(command.command, PulseEndpoint):
                self._begin_pulse(command.deployment, command.command.probe)
            elif isinstance(command, Told) and isinstance(command.command, Complain):
                log.error("%s: a rule has a fault", command.deployment, exc_info=command.command.error)
        if new.documents is not old.documents:
            for node, document in new.documents.items():
                if old.documents.get(node) is not document:
                    for wake in self._polls.get(node, ()):
                        wake.set()

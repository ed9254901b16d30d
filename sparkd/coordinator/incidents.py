"""Incidents: what is written up of a fall, completed as more is heard, and one JSON file of each."""

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from sparkd.clock import Clock, Instant
from sparkd.coordinator.blackbox import BlackBox
from sparkd.coordinator.events import EventLog
from sparkd.coordinator.stacks import read_stacks, shortened
from sparkd.coordinator.store import Changes, Store
from sparkd.diagnosis.explanation import explain, of_fall, with_calls
from sparkd.diagnosis.timeline import completed, timeline
from sparkd.errors import SparkdError
from sparkd.fleet.nodes import Node
from sparkd.fleet.state import Fleet
from sparkd.gang.record import GangRecord
from sparkd.gang.state import WriteIncident
from sparkd.records.answer import RankStacks
from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd.records.document import TaskKind
from sparkd.records.incident import Entry, Incident
from sparkd.records.report import Report, TaskResult
from sparkd.records.verdict import Verdict

log = logging.getLogger("sparkd.coordinator")

_APART: Final = frozenset({"BOOT_STALLED", "HEAD_UNREACHABLE", "RANK_ABSENT", "COLLECTIVE_TIMEOUT"})
"""What a network that does not carry looks like from a rank."""


class Incidents:
    """Hears every report; writes up a fall at once, again a little later, and once more when a node that went
    away is back. Nothing here decides, and what cannot be written is left as it was.
    """

    def __init__(
        self,
        store: Store,
        events: EventLog,
        clock: Clock,
        files: "IncidentFiles | None",
        *,
        fleet: Callable[[], Fleet],
        ask: Callable[[str, TaskKind, Mapping[str, Any], float], Awaitable[TaskResult | None]],
        call: Callable[[Sequence[str]], Awaitable[Sequence[Verdict]]],
        limits: Defaults = DEFAULTS,
    ) -> None:
        """`call` has nodes, by their ids, call each other where ranks meet, and says what it found."""
        self._store = store
        self._events = events
        self._clock = clock
        self._files = files
        self._fleet = fleet
        self._ask = ask
        self._call = call
        self._called: dict[str, tuple[int, tuple[Verdict, ...]]] = {}
        self._limits = limits
        self._box = BlackBox(limits)
        self._incomplete: dict[tuple[str, int], tuple[WriteIncident, GangRecord, float]] = {}
        self._returned: dict[str, str] = {}
        self._asking: set[asyncio.Task[None]] = set()

    def hear(self, node: Node, report: Report) -> None:
        """Before it is acted upon: what it tells of a fall belongs into the incident that it begins."""
        try:
            self._box.take(node, report, self._clock.now())
        except Exception:  # what is kept for an explanation keeps no report from being heard
            log.exception("what %s reports cannot be kept", node.name)

    def begin(self, incident: WriteIncident, record: GangRecord, fleet: Fleet, now: Instant) -> Incident:
        """What is known now, to be committed with the fall."""
        due = now.mono + self._limits.incident_complete_s
        self._incomplete[record.name, incident.fall.generation] = (incident, record, due)
        self._look_at_the_network(incident, record, fleet)
        return self._write_up(incident, record, fleet, now)

    def complete(self, *, at_once: bool = False) -> None:
        """Exits, last lines and samples of the moment of a fall come after the news of it."""
        now = self._clock.now()
        for key, (incident, record, due) in list(self._incomplete.items()):
            if now.mono >= due or at_once:
                del self._incomplete[key]
                self._rewrite(key, self._write_up(incident, record, self._fleet(), now))

    def _look_at_the_network(self, incident: WriteIncident, record: GangRecord, fleet: Fleet) -> None:
        """Ranks that did not find each other say no more than that: whether their nodes do is tried now."""
        generation = incident.fall.generation
        known = self._called.get(record.name, (0, ()))[0] == generation
        nodes = [fleet.nodes[node] for node in record.nodes if node in fleet.nodes]
        local = any(node.facts is not None and node.facts.local for node in nodes)
        if incident.fall.cause not in _APART or known or local or len(nodes) < 2:
            return
        self._called[record.name] = generation, ()
        self._begin(self._complete_with_calls(incident, record))

    async def _complete_with_calls(self, incident: WriteIncident, record: GangRecord) -> None:
        found: Sequence[Verdict] = ()
        with contextlib.suppress(SparkdError):  # it is told why elsewhere
            found = await self._call(record.nodes)
        generation = incident.fall.generation
        if found and self._called.get(record.name) == (generation, ()):
            self._called[record.name] = generation, tuple(found)
            key = record.name, generation
            newest = self._incomplete.get(key, (incident, record, 0.0))
            self._rewrite(key, self._write_up(newest[0], newest[1], self._fleet(), self._clock.now()))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        asking = asyncio.get_running_loop().create_task(work)
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)

    def look_for_a_return(self, report: Report) -> None:
        """A node whose last boot ended without a shutdown has a black box of its own, asked once a boot."""
        caller = report.caller
        verdicts = report.sample.verdicts if report.sample is not None else ()
        if self._returned.get(caller.node) == caller.boot or not any(v.id == "UNCLEAN_END" for v in verdicts):
            return
        self._returned[caller.node] = caller.boot
        self._begin(self._complete_from(caller.node))

    def file(self, incidents: tuple[tuple[str, int, Incident], ...]) -> None:
        """What was committed, as files."""
        if self._files is not None:
            for name, generation, incident in incidents:
                self._files.write(name, generation, incident)

    def close(self) -> None:
        for asking in self._asking:
            asking.cancel()

    async def _complete_from(self, node_id: str) -> None:
        """Complete the last incident of each deployment from when the node went."""
        result: TaskResult | None = None
        with contextlib.suppress(SparkdError):  # it is told why elsewhere
            result = await self._ask(node_id, "blackbox", {}, self._limits.stacks_ask_s)
        node = self._fleet().nodes.get(node_id)
        if result is None or not result.ok or node is None or not (records := result.result.get("records")):
            return
        self.complete(at_once=True)  # what is written of them later would not have this
        ended = float(records[-1]["at"]) + node.clock_offset_s
        for name in self._fleet().gangs:
            for body in self._store.incidents(name)[:1]:
                incident = msgspec.convert(body, Incident)
                if abs(incident.fall.wall - ended) <= self._limits.blackbox_s:
                    whole = completed(incident.timeline, node.name, records, node.clock_offset_s)
                    self._rewrite((name, incident.generation), replace(incident, timeline=whole))

    def _rewrite(self, key: tuple[str, int], incident: Incident) -> None:
        changes = Changes(incidents=((*key, incident),))
        with contextlib.suppress(sqlite3.Error):  # what was written first is still there
            self._store.commit(changes)
            self.file(changes.incidents)

    def _write_up(self, incident: WriteIncident, record: GangRecord, fleet: Fleet, now: Instant) -> Incident:
        """The fall with all that is kept of the gang's nodes around it."""
        try:
            return self._explained(incident, record, fleet, now)
        except Exception:  # a rule with a fault keeps no fall from being acted upon
            log.exception("the fall of %s cannot be explained", record.name)
            fall = incident.fall
            return Incident(now.wall, fall.generation, fall, incident.verdicts, stacks=self._stacks(incident))

    def _explained(self, incident: WriteIncident, record: GangRecord, fleet: Fleet, now: Instant) -> Incident:
        fall = incident.fall
        nodes = [fleet.nodes[node] for node in record.nodes if node in fleet.nodes]
        ranks = {spec.name: spec.rank for spec in record.specs}
        since = fall.wall - self._limits.timeline_s
        evidence = self._box.evidence(nodes, ranks, since)
        said = [
            Entry(one.at, "event", f"{one.kind}: {one.reason}", one.node, one.rank)
            for one in self._events.recent(self._limits.timeline_entries, record.name)
        ]
        acts = self._box.acts(nodes, since)
        told = of_fall(explain(evidence, fall), fall, incident.verdicts)
        generation, called = self._called.get(record.name, (0, ()))
        return Incident(
            at=now.wall,
            generation=fall.generation,
            fall=fall,
            verdicts=incident.verdicts,
            explanation=with_calls(told, called) if generation == fall.generation else told,
            timeline=timeline(evidence, (*said, *acts), until=max(now.wall, fall.wall)),
            stacks=self._stacks(incident),
        )

    def _stacks(self, incident: WriteIncident) -> tuple[RankStacks, ...]:
        most = self._limits.stacks_lines
        return tuple(shortened(read_stacks(one.rank, one.node, one.result), most) for one in incident.stood)


class IncidentFiles:
    """`FOLDER/NAME-gGENERATION.json`, the newest of them. A full disk keeps nothing from being decided."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, deployment: str, generation: int, incident: Incident) -> None:
        path = self._folder / f"{deployment}-g{generation}.json"
        body = msgspec.json.format(msgspec.json.encode({"deployment": deployment, "incident": incident}))
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            part = path.with_suffix(".part")
            part.write_bytes(body)
            part.replace(path)
            files = sorted(self._folder.glob("*.json"), key=lambda file: file.stat().st_mtime)
            for old in files[: -DEFAULTS.incident_files]:
                old.unlink()
        except OSError as error:
            log.warning("%s cannot be written: %s", path, error)

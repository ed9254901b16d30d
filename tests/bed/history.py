"""What was seen of a cluster from outside, and whether it may have been so (design §2; facts §C.6).

The oracle knows nothing of how sparkd works: it has the processes that were seen alive together, the events
that the coordinator told, its statuses, and the answers that a client got.
"""

import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from sparkd.client import Client
from sparkd.errors import SparkdError
from sparkd.records.defaults import DEFAULTS
from sparkd.records.event import Event
from sparkd.records.status import Status
from tests.bed.cluster import Cluster, Sighting

SAMPLE_S = 0.05
STATUS_S = 0.2
READY_LAG_S = 3.0
"""A dead rank is known in 0.5 s and told with the next report; the rest is a loaded machine."""
READY_BOUND_S = 35.0
"""Of `ready` when the agent that would see the death is away (design §11 "Defaults")."""
STOPPED_LAG_S = 10.0
ENDED = ("stopped", "failed")


@dataclass(frozen=True, slots=True)
class Sample:
    """One look. `running`: the daemons that run and are not stopped, the coordinator as 0, agents from 1."""

    at: float
    seen: tuple[Sighting, ...]
    running: frozenset[int]
    status: Status | None = None
    """Asked in this very moment; None where nobody was asked, or nobody answered."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A client's command. `sure`: it was answered; else nobody can know whether it was taken."""

    at: float
    deployment: str
    verb: str
    sure: bool


@dataclass
class History:
    samples: list[Sample] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    notes: list[tuple[float, str]] = field(default_factory=list)
    events: tuple[Event, ...] = ()

    def note(self, text: str) -> None:
        self.notes.append((time.time(), text))

    def timeline(self, since: float | None = None) -> str:
        """Faults, commands, events and what was seen alive, in one order; from the first look on."""
        lines = [(at, f"    ! {text}") for at, text in self.notes]
        lines += [
            (a.at, f"  ask {a.verb} {a.deployment}{'' if a.sure else ' (no answer)'}") for a in self.asked
        ]
        lines += [(e.at, f"event {e.id} {_words(e)}: {e.reason}") for e in self.events]
        before: set[tuple[int, str]] = set()
        for sample in self.samples:
            now = {(one.node, one.rank) for one in sample.seen}
            if now != before:
                alive = ", ".join(f"{rank}@{node}" for node, rank in sorted(now)) or "nothing"
                lines.append((sample.at, f"alive {alive}"))
            before = now
        start = self.samples[0].at if self.samples else 0.0
        begin = start if since is None else since
        return "\n".join(f"{at - start:9.3f} {text}" for at, text in sorted(lines) if at >= begin)


def _words(event: Event) -> str:
    where = "/".join(
        str(part) for part in (event.deployment, event.generation, event.node) if part is not None
    )
    return f"{event.kind} {where}" + (f" {event.from_} -> {event.to}" if event.to else "")


class Recorder:
    """Looks at a cluster until closed. `stopped` holds the daemons that got SIGSTOP (0: the coordinator)."""

    def __init__(self, cluster: Cluster) -> None:
        self.history = History()
        self.stopped: set[int] = set()
        self._cluster = cluster
        client = cluster.client
        # Of its own, and impatient: a coordinator that hangs must not keep it from looking at processes.
        self._client = Client(client.base_url, cluster.token, limits=replace(DEFAULTS, client_answer_s=1.0))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def close(self) -> History:
        self.stop()
        self.history.events = self._cluster.client.recent_events(limit=10_000)
        return self.history

    def _run(self) -> None:
        due = 0.0
        while not self._over.wait(SAMPLE_S):
            daemons = enumerate(self._cluster.daemons)
            running = frozenset(i for i, daemon in daemons if daemon.alive and i not in self.stopped)
            seen = tuple(self._cluster.sightings())
            status = None
            if time.monotonic() >= due and 0 in running:
                due = time.monotonic() + STATUS_S
                try:
                    status = self._client.status()
                except SparkdError:
                    status = None
            self.history.samples.append(Sample(time.time(), seen, running, status))


def violations(history: History) -> list[str]:
    """Everything that may not have been so, in plain words; empty for a good history."""
    checks = (_together, _started_once, _growing, _told_ready, _left_after_the_end, _events)
    return list(dict.fromkeys(text for check in checks for text in check(history)))


def _together(history: History) -> Iterator[str]:
    """Two generations alive together only where the older one's node was out of contact at the commit."""
    contact = _contact_at_launch(history.events)
    for sample in history.samples:
        by_deployment: dict[str, set[int]] = defaultdict(set)
        by_node: dict[int, set[tuple[str, int]]] = defaultdict(set)
        for one in sample.seen:
            by_deployment[one.deployment].add(one.generation)
            by_node[one.node].add((one.deployment, one.generation))
            if (one.deployment, one.generation) not in contact:
                yield f"{one.rank} ran on node {one.node}, and no event tells of its generation's launch"
        for node, gangs in by_node.items():
            if len(gangs) > 1:
                yield f"node {node} had ranks of {sorted(gangs)} together at {sample.at:.3f}"
        for name, generations in by_deployment.items():
            newest = max(generations)
            for one in sample.seen:
                older = one.deployment == name and one.generation < newest
                if older and f"local-{one.node}" in contact.get((name, newest), ()):
                    yield (
                        f"{one.rank} was alive on node {one.node} together with generation {newest} at "
                        f"{sample.at:.3f}, and its node was in contact when that was committed"
                    )


def _contact_at_launch(events: tuple[Event, ...]) -> dict[tuple[str, int], frozenset[str]]:
    """The nodes in contact when a generation was committed, as the events before it tell."""
    found: dict[tuple[str, int], frozenset[str]] = {}
    states: dict[str, str] = {}
    term = ""
    for event in events:
        if event.id.partition("-")[0] != term:
            term, states = event.id.partition("-")[0], {}
        if event.kind == "node" and event.node and event.to:
            states[event.node] = event.to
        if event.to == "launching" and event.deployment and event.generation:
            near = frozenset(node for node, state in states.items() if state in ("alive", "suspect"))
            found.setdefault((event.deployment, event.generation), near)
    return found


def _started_once(history: History) -> Iterator[str]:
    leaders: dict[str, set[tuple[int, int, int]]] = defaultdict(set)
    for sample in history.samples:
        for one in sample.seen:
            if one.leader:
                leaders[one.rank].add((one.node, one.ref.pid, one.ref.starttime))
    for rank, found in leaders.items():
        if len(found) > 1:
            yield f"{rank} was started {len(found)} times (node, pid, start): {sorted(found)}"


def _growing(history: History) -> Iterator[str]:
    """Terms, places in a term and generations never fall."""
    before = (0, 0)
    for event in history.events:
        term, _, number = event.id.partition("-")
        place = (int(term), int(number))
        if place <= before:
            yield f"event {event.id} came after {before[0]}-{before[1]}"
        before = place
    generations: dict[str, int] = {}
    for sample in history.samples:
        for one in sample.status.deployments if sample.status else ():
            if one.generation < generations.get(one.name, 0):
                yield f"{one.name} fell from generation {generations[one.name]} to {one.generation}"
            generations[one.name] = one.generation


def _told_ready(history: History) -> Iterator[str]:
    """`ready` with a rank missing, for longer than its death may take to become known."""
    since: dict[tuple[str, int], tuple[float, bool]] = {}
    for sample in history.samples:
        if sample.status is None:
            continue
        alive = {one.rank for one in sample.seen}
        missing = {
            (one.name, rank.rank): rank.node
            for one in sample.status.deployments
            if one.phase == "ready"
            for rank in one.ranks
            if f"sparkd-{one.name}-g{one.generation}-r{rank.rank}" not in alive
        }
        since = {key: value for key, value in since.items() if key in missing}
        for key, node in missing.items():
            supervised = int(node.rpartition("-")[2]) in sample.running
            begun, so_far = since.get(key, (sample.at, True))
            since[key] = (begun, so_far and supervised)
            bound = READY_LAG_S if supervised and so_far else READY_BOUND_S
            if sample.at - begun > bound:
                yield f"{key[0]} was told ready for more than {bound:g} s without rank {key[1]}"


def _left_after_the_end(history: History) -> Iterator[str]:
    """No rank 10 s after its deployment's end was told, on a node whose agent ran all the time."""
    changes = [e for e in history.events if e.kind == "phase" and e.deployment]
    running_since: dict[int, float] = {}
    ended: dict[str, float] = {}
    position = 0
    for sample in history.samples:
        while position < len(changes) and changes[position].at <= sample.at:
            change = changes[position]
            position += 1
            ended.pop(str(change.deployment), None)
            if change.to in ENDED:
                ended[str(change.deployment)] = change.at
        running_since = {i: running_since.get(i, sample.at) for i in sample.running}
        for one in sample.seen:
            told = ended.get(one.deployment)
            agent = running_since.get(one.node)
            if told is None or agent is None or 0 not in running_since:
                continue
            if sample.at - max(told, agent, running_since[0]) > STOPPED_LAG_S:
                yield f"{one.rank} lived on node {one.node} {sample.at - told:.1f} s after its end was told"


def _events(history: History) -> Iterator[str]:
    exits: dict[tuple[object, ...], str] = {}
    for event in history.events:
        if not event.reason.strip():
            yield f"event {event.id} ({event.kind}) has no reason"
        if event.kind == "fault":
            yield f"a rule has a fault, event {event.id} of {event.deployment}: {event.reason}"
        pid = re.search(r"\(pid (\d+)\)", event.reason)
        if event.kind == "exit" and pid:
            key = (event.deployment, event.rank, pid[1])
            if key in exits:
                who = f"{event.deployment}'s rank {event.rank}, pid {pid[1]}"
                yield f"the exit of {who} was told twice: {exits[key]}, {event.id}"
            exits[key] = event.id


def promises(history: History, status: Status) -> Iterator[str]:
    """What was asked last, and answered, is what is wanted now."""
    wanted = {one.name: one.desired for one in status.deployments}
    by_name: dict[str, list[Asked]] = defaultdict(list)
    for one in history.asked:
        by_name[one.deployment].append(one)
    for name, asked in by_name.items():
        possible: set[str] = set()
        for one in asked:
            now = {"up": "up", "down": "down"}.get(one.verb)
            if now is not None:
                possible = {now} if one.sure else possible | {now}
        sure = any(one.sure for one in asked)
        if sure and possible and wanted.get(name) not in possible:
            yield f"{name} is wanted {wanted.get(name)}, and {' or '.join(sorted(possible))} was acknowledged"

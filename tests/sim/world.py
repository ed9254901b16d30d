"""A simulated cluster: the real fleet machine and real agent cores; network, disks and processes are played.

Nothing here decides what sparkd does. A seed gives a schedule of faults; `check` is the oracle.
"""

import heapq
import random
from collections.abc import Callable
from typing import Any

from sparkd.clock import Instant
from sparkd.errors import SparkdError
from sparkd.fleet import machine as fleet_machine
from sparkd.fleet.state import Commands, Fleet, Superseded
from sparkd.gang.record import GangRecord
from sparkd.gang.state import Complain, EndpointPulsed, PulseEndpoint, WriteIncident
from sparkd.records.collective import CollectiveReport
from sparkd.records.intent import Intent
from sparkd.records.report import ReportAnswer
from tests.sim import oracle
from tests.sim.coordinator import HOLDER, LIMITS, Coordinator, Link
from tests.sim.faults import Faults
from tests.sim.node import SimNode, SimRank
from tests.sim.oracle import BUDGET
from tests.sim.people import People

BOOT_S = 0.5


def intent(tp: int, nodes: tuple[str, ...] = ()) -> Intent:
    profile: dict[str, Any] = {
        "layout": {"tp": tp},
        "model": {"path": "tiny"},
        "restart": {"budget": BUDGET, "backoff_s": 1.0, "backoff_max_s": 5.0},
    }
    return Intent(profile_name="tiny", profile=profile, nodes=nodes)


class World:
    """Virtual time, a network with faults, and the cluster on it."""

    def __init__(self, seed: int, names: tuple[str, ...] = ("a", "b", "c")) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.now = 0.0
        self.story: list[str] = []
        self.violations: list[str] = []
        self.people = People(self)
        self.faults = Faults(self)
        self.coordinator = Coordinator(names)
        self.delay = 0.005
        self.loss = 0.0
        self.cut: set[tuple[str, str]] = set()
        """(from, to) pairs that lose everything; the coordinator is `*`."""
        self._changed = True
        self._stuck: dict[str, Callable[[], None]] = {}
        """Of each node the last report that showed no rank: it may lie in a queue and arrive much later."""
        self.duplicates = 0.0
        """Share of reports that arrive a second time, long after."""
        self.rival: Coordinator | None = None
        self.unreachable: set[str] = set()
        """Nodes whose API the coordinator cannot reach either."""
        self.isolated = False
        self.deaf = False
        """Some node's probe did not come to the rendezvous for a while."""
        self.asked: dict[str, str] = {}
        """The last acknowledged wish of each deployment: up or down."""
        self.crash_next: str | None = None
        self.bears_faults = False
        """Whether a rule with a fault is played on, as the coordinator does it; else it ends the play."""
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.nodes = {name: SimNode(name, HOLDER, self.schedule) for name in names}
        for node in self.nodes.values():
            node.reaches_head = self._reaches_head
            node.fenced = lambda name=node.id: self._fenced(name)
        self.links = {name: Link() for name in names}
        self.coordinator.start(0.0)
        for name, node in self.nodes.items():
            node.hurry = lambda name=name: self._something_happened(name)
            self.hurry(name)
        self.schedule(LIMITS.tick_s, self._tick)

    # Time.

    def schedule(self, delay: float, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay, self._count, what))

    def at(self, when: float, what: Callable[[], None]) -> None:
        self.schedule(when - self.now, what)

    def run(self, until: float) -> None:
        """Play everything up to a moment; the oracle looks after each step."""
        while self._queue and self._queue[0][0] <= until and not self.violations:
            self.now, _, what = heapq.heappop(self._queue)
            for node in self.nodes.values():
                node.now = self.now
            what()
            if self._changed:
                self._changed = False
                oracle.check(self)
        self.now = until
        for node in self.nodes.values():
            node.now = until

    def run_until(self, condition: Callable[[], bool], limit: float) -> bool:
        """Whether the condition came true within `limit` seconds."""
        end = self.now + limit
        while not condition():
            if self.now >= end or self.violations:
                return False
            self.run(min(self.now + 0.05, end))
        return True

    def tell(self, text: str) -> None:
        self.story.append(f"{self.now:8.3f}  {text}")

    # Engines: ranks of one generation meet at their rendezvous and serve while all live.

    def _engines(self) -> None:
        groups: dict[tuple[str, int, str, int], dict[int, SimRank]] = {}
        for node in self.nodes.values():
            for rank in node.exists():
                if rank.state == "running":
                    spec = rank.spec
                    key = (spec.deployment, spec.generation, spec.rendezvous.host, spec.rendezvous.port)
                    groups.setdefault(key, {})[spec.rank] = rank
        for ranks in groups.values():
            if next(iter(ranks.values())).spec.kind == "probe":
                self._probe(ranks)
                continue
            head = ranks.get(0)
            if head is None or len(ranks) < head.spec.ranks:
                continue
            if max(rank.born for rank in ranks.values()) + BOOT_S <= self.now:
                for rank in ranks.values():
                    rank.joined = True
            frozen = any(rank.frozen for rank in ranks.values())
            if not head.joined or frozen:
                continue
            head.proved_at = self.now
            if head.warmed_at is None:
                head.warmed_at = self.now
                self.urgent(head)

    def _probe(self, ranks: dict[int, SimRank]) -> None:
        """Those of one probe meet as the others do, sum up, and end together."""
        homes = [
            (node, rank) for node in self.nodes.values() for rank in ranks.values() if rank in node.exists()
        ]
        for node, rank in homes:
            node.probe_turn(rank)
        met = [rank for _, rank in homes if rank.told is not None and rank.told.stage == "met"]
        all_met = bool(met) and len(met) == met[0].spec.ranks
        for node, rank in homes if all_met else ():
            node.probe_over(rank, CollectiveReport("done"), 0)

    def urgent(self, rank: SimRank) -> None:
        for name, node in self.nodes.items():
            if node.ranks.get(rank.spec.name) is rank:
                self.hurry(name)

    # Network.

    def _reaches(self, source: str, target: str) -> bool:
        return (source, target) not in self.cut and self.random.random() >= self.loss

    def _lag(self) -> float:
        return self.delay * (0.5 + self.random.random())

    # Agents.

    def _something_happened(self, name: str) -> None:
        self._changed = True
        self.hurry(name)

    def hurry(self, name: str) -> None:
        """Have the agent speak in a moment; also the way its loop is kept going."""
        link = self.links[name]
        if not link.due:
            link.due = True
            self.schedule(0.002, lambda: self._agent_turn(name))

    def _agent_turn(self, name: str) -> None:
        """An agent's loop: hello, else a report each beat or at once on news."""
        node, link = self.nodes[name], self.links[name]
        link.due = False
        if not node.powered or node.core is None:
            return
        if link.greeted and link.run == node.run and self.now - link.answered > LIMITS.lease_s:
            link.greeted = False
        if link.greeted and link.run == node.run:
            self._send_report(node, link)
        else:
            self._send_hello(node, link)
        link.turns += 1
        turn = link.turns
        self.schedule(LIMITS.beat_s, lambda: self._beat(name, turn))

    def _beat(self, name: str, turn: int) -> None:
        """A beat after the last word; words in between put it off."""
        if self.links[name].turns == turn:
            self.hurry(name)

    def _send_hello(self, node: SimNode, link: "Link") -> None:
        if not self._reaches(node.id, "*"):
            return
        hello, run = node.hello(), node.run
        if self.rival is not None and self.rival.fleet is not None and self.random.random() < 0.5:
            link.peer = self.rival
        else:
            link.peer = self.coordinator
        who = link.peer

        def arrive() -> None:
            try:
                welcome = self.apply(lambda fleet, now: fleet_machine.hello(fleet, hello, now, LIMITS), who)
            except SparkdError:
                return
            if welcome is not None and self._reaches("*", node.id):
                self.schedule(self._lag(), greeted)

        def greeted() -> None:
            if node.run == run and node.core is not None:
                link.greeted, link.run, link.answered = True, run, self.now
                self._poll(node, run)
                self.hurry(node.id)

        self.schedule(self._lag(), arrive)

    def _send_report(self, node: SimNode, link: "Link") -> None:
        report, count = node.report()
        run, who = node.run, link.peer
        if not self._reaches(node.id, "*"):
            return

        def arrive() -> None:
            try:
                answer = self.apply(lambda fleet, now: fleet_machine.report(fleet, report, now, LIMITS), who)
            except SparkdError:
                self.schedule(self._lag(), refused)
                return
            if answer is not None and self._reaches("*", node.id):
                self.schedule(self._lag(), lambda: answered(answer))

        def refused() -> None:
            if link.run == run:
                link.greeted = False
                self.hurry(node.id)

        def answered(answer: ReportAnswer) -> None:
            # An answer that comes over a connection which was given up is nobody's any more.
            if node.run == run and node.core is not None and link.peer is who:
                link.answered = self.now
                node.acknowledged(report, count if answer.acked else 0, answer.lease_s)

        if not report.ranks:
            self._stuck[node.id] = arrive
        self.schedule(self._lag(), arrive)
        if self.duplicates and self.random.random() < self.duplicates:
            self.schedule(self.random.uniform(0.3, 6.0), arrive)

    def _poll(self, node: SimNode, run: str) -> None:
        """Send the node its newest document, as its long poll's answer; a lost one is asked for again."""
        link = self.links[node.id]
        fleet = link.peer.fleet if link.peer is not None else None
        if node.run != run or node.core is None or not link.greeted or fleet is None:
            return
        known, document = fleet.nodes[node.id], fleet.documents.get(node.id)
        if known.run != run or not known.greeted or document is None or document.order <= node.accepted():
            return
        if self._reaches(node.id, "*") and self._reaches("*", node.id):

            def deliver() -> None:
                if node.run == run and node.core is not None:
                    node.take(document)

            self.schedule(self._lag(), deliver)
        self.schedule(1.0, lambda: self._poll(node, run))

    # The coordinator.

    def apply(
        self, step: Callable[[Fleet, Instant], tuple[Fleet, Commands, Any]], who: Coordinator | None = None
    ) -> Any:
        """As the reconciler does it: step, commit, show. A crash may come between any two."""
        if who is not None and who is not self.coordinator:
            return self._apply_rival(who, step)
        old = self.coordinator.fleet
        if old is None:
            return None
        new, commands, answer = step(old, Instant(self.now, self.now))
        crash, self.crash_next = self.crash_next, None
        if crash == "before-commit":
            self.kill_coordinator("before the commit")
            return None
        if any(isinstance(command, Superseded) for command in commands):
            self.kill_coordinator("superseded")
            return None
        for name, gang in new.gangs.items():
            stored = gang.record.serial > 0
            if stored and (name not in old.gangs or gang.record is not old.gangs[name].record):
                self.coordinator.records[name] = gang.record
        if new.term != old.term:
            self.coordinator.lives.add((new.term, new.instance))
        oracle.check_order(self, old, new)
        oracle.check_commit(self, old, new)
        for command in commands:
            self._note(command)
            said = getattr(command, "command", None)
            if isinstance(said, PulseEndpoint):
                self._pulse_endpoint(command.deployment)
            elif isinstance(said, WriteIncident):
                oracle.check_fall(self, old, command.deployment, said)
        if crash == "after-commit":
            self.kill_coordinator("after the commit")
            return None
        self.coordinator.fleet = new
        self._changed = True
        self._wake_polls(old, new)
        return answer

    def _apply_rival(self, rival: Coordinator, step: Callable[..., tuple[Fleet, Commands, Any]]) -> Any:
        """A second coordinator, by mistake: its decisions are not ours to judge, what comes of them is."""
        old = rival.fleet
        if old is None:
            return None
        new, commands, answer = step(old, Instant(self.now, self.now))
        for command in commands:
            self._bear(getattr(command, "command", command))
            if isinstance(command, Superseded):
                self.tell(f"the rival ends: {command.reason}")
                rival.kill()
                return None
        rival.fleet = new
        self._wake_polls(old, new)
        return answer

    def _wake_polls(self, old: Fleet, new: Fleet) -> None:
        if new.documents is old.documents:
            return
        for name, document in new.documents.items():
            if old.documents.get(name) is not document:
                node = self.nodes[name]
                self.schedule(self._lag(), lambda node=node, run=node.run: self._poll(node, run))

    def _deliver_stuck(self) -> None:
        """A request that lay in a queue arrives now, of all moments: a gang is being ended."""
        for arrive in self._stuck.values():
            if self.random.random() < self.duplicates * 3:
                self.schedule(self.random.uniform(0.02, 1.5), arrive)

    def _bear(self, said: Any) -> None:
        if isinstance(said, Complain) and not self.bears_faults:
            raise said.error

    def _note(self, command: Any) -> None:
        said = getattr(command, "command", command)
        self._bear(said)
        kind = getattr(said, "kind", type(said).__name__)
        to = f" -> {said.to}" if getattr(said, "to", None) else ""
        who = getattr(command, "deployment", getattr(command, "node", ""))
        self.tell(f"{who} {kind}{to}: {getattr(said, 'reason', '')}")
        if getattr(said, "to", None) in ("recovering", "stopping"):
            self._deliver_stuck()

    def _tick(self) -> None:
        self._engines()
        if self.coordinator.fleet is not None:
            self.apply(lambda fleet, now: (*fleet_machine.tick(fleet, now, LIMITS), None))
        self.schedule(LIMITS.tick_s, self._tick)

    def kill_coordinator(self, why: str) -> None:
        self.tell(f"coordinator dies {why}")
        self.coordinator.kill()
        self.schedule(1.0, self.coordinator_back)

    def coordinator_back(self) -> None:
        if self.coordinator.fleet is None:
            self.coordinator.start(self.now)
            fleet = self.coordinator.fleet
            self.tell(f"coordinator is back, term {fleet.term if fleet is not None else 0}")

    def _pulse_endpoint(self, name: str) -> None:
        """The coordinator's own pulse: over the network that clients use, which may be cut as well."""
        self._engines()
        head = next((r for r in self.living(name) if r.spec.rank == 0 and r.state == "running"), None)
        outcome, wait = "undelivered", 1.0
        if head is not None and not self.isolated and self._node_of(head) not in self.unreachable:
            answered = head.proved_at == self.now
            outcome, wait = ("answered", self._lag()) if answered else ("unanswered", 20.0)
        pulsed = EndpointPulsed(outcome)  # type: ignore[arg-type]

        def step(fleet: Fleet, now: Instant) -> Any:
            return (*fleet_machine.endpoint_pulsed(fleet, name, pulsed, now, LIMITS), None)

        self.schedule(wait, lambda: self.apply(step))

    def _node_of(self, rank: SimRank) -> str:
        return next(name for name, node in self.nodes.items() if rank in node.ranks.values())

    def _fenced(self, name: str) -> None:
        """It refused a document: it says hello anew, and with that whom it obeys."""
        self.links[name].greeted = False
        self.hurry(name)

    def _reaches_head(self, host: str, port: int) -> bool:
        """Whether rank 0 on that node takes a connection at its rendezvous or API."""
        head = self.nodes.get(host)
        return head is not None and any(
            rank.spec.rank == 0 and port in (rank.spec.rendezvous.port, 8100) for rank in head.exists()
        )

    # Looking.

    def record(self, name: str) -> GangRecord | None:
        fleet = self.coordinator.fleet
        if fleet is None or name not in fleet.gangs:
            return None
        return fleet.gangs[name].record

    def phase(self, name: str) -> str:
        record = self.record(name)
        return record.phase if record else "unknown"

    def living(self, name: str) -> list[SimRank]:
        return [r for n in self.nodes.values() for r in n.exists() if r.spec.deployment == name]

    def violated(self, invariant: int, text: str) -> None:
        self.violations.append(f"invariant {invariant} at {self.now:.3f}: {text}")
        self.tell(f"VIOLATED {self.violations[-1]}")

    def timeline(self) -> str:
        return "\n".join([f"seed {self.seed}", *self.story])

"""One node as the coordinator sees it: in contact or not, and what runs there. Pure.

             hello                 2 s                  4 s
    unknown ───────> alive ───────────────> suspect ──────────> silent
                       ^                       │                  │
                       └────── any receipt ────┴──────────────────┘

Seconds are since the last receipt, on the coordinator's monotonic clock: a node's own clock decides nothing.
"""

from dataclasses import dataclass, field, replace

from sparkd.clock import Instant
from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd.records.document import DeploymentSerial, Revision
from sparkd.records.names import parse_rank_name
from sparkd.records.report import Hello, LedgerRank, NodeFacts, RankReport, Refusal, Report, Sample
from sparkd.records.status import NodeState

NOTHING_LEFT = frozenset({"gone"})
NOTHING_YET = Revision(0, 0)


@dataclass(frozen=True, slots=True)
class Node:
    """`greeted`: this run of the agent has said hello to this instance of the coordinator."""

    id: str
    name: str
    facts: NodeFacts | None = None
    run: str = ""
    boot: str = ""
    seq: int = 0
    greeted: bool = False
    heard: float | None = None
    state: NodeState = "unknown"
    since_wall: float = 0.0
    drained: bool = False
    reports: dict[str, RankReport] = field(default_factory=dict)
    """By rank name: what exists on the node, as of the last receipt."""
    refusals: dict[str, Refusal] = field(default_factory=dict)
    """By rank name."""
    generations: dict[str, int] = field(default_factory=dict)
    ledger: tuple[LedgerRank, ...] = ()
    deployments: tuple[DeploymentSerial, ...] = ()
    applied: Revision = NOTHING_YET
    published: Revision = NOTHING_YET
    sample: Sample | None = None
    baseline_bytes: int | None = None
    clock_offset_s: float = 0.0
    """Coordinator's wall clock minus the node's, from the beat with the smallest round trip."""
    clock_error_s: float = float("inf")

    @property
    def in_contact(self) -> bool:
        return self.greeted and self.state in ("alive", "suspect")

    @property
    def settled(self) -> bool:
        """The node has made its newest document true, as far as it has said."""
        return self.greeted and self.applied >= self.published

    def existing(self, deployment: str | None = None) -> tuple[RankReport, ...]:
        """Ranks of which something is left on the node, of one deployment or of all."""
        return tuple(
            report
            for name, report in self.reports.items()
            if report.state not in NOTHING_LEFT and (deployment is None or _deployment_of(name) == deployment)
        )


def _deployment_of(name: str) -> str | None:
    parsed = parse_rank_name(name)
    return parsed.deployment if parsed else None


def greet(node: Node, hello: Hello, now: Instant) -> Node:
    """Take a hello: this run speaks for the node from now on."""
    return replace(
        node,
        name=hello.facts.name,
        facts=hello.facts,
        run=hello.caller.run,
        boot=hello.caller.boot,
        seq=hello.caller.seq,
        greeted=True,
        heard=now.mono,
        reports={report.name: report for report in hello.ranks},
        refusals={},
        generations=dict(hello.generations),
        ledger=hello.ledger,
        deployments=hello.deployments,
        applied=NOTHING_YET,
    )


def hear(node: Node, report: Report, now: Instant) -> Node:
    """Take a report of the run that said hello. The caller has judged its `seq`."""
    offset, error = _clock(node, report, now)
    generations = dict(node.generations)
    for rank in report.ranks:
        parsed = parse_rank_name(rank.name)
        if parsed is not None:
            generations[parsed.deployment] = max(generations.get(parsed.deployment, 0), parsed.generation)
    return replace(
        node,
        seq=report.caller.seq,
        heard=now.mono,
        reports={rank.name: rank for rank in report.ranks},
        refusals={refusal.rank: refusal for refusal in report.refusals},
        generations=generations,
        applied=max(node.applied, report.applied),
        sample=report.sample or node.sample,
        baseline_bytes=report.baseline_bytes,
        clock_offset_s=offset,
        clock_error_s=error,
    )


def _clock(node: Node, report: Report, now: Instant) -> tuple[float, float]:
    """Offset and error of the node's wall clock: the best beat's, until a clock was set.

    No report is under way for longer than its time-out, so a larger difference is a clock and not a delay.
    """
    offset, error = node.clock_offset_s, node.clock_error_s
    if report.rtt_s is None:
        return offset, error
    seen = now.wall - report.rtt_s / 2 - report.wall
    was_set = abs(seen - offset) > error + 2 * DEFAULTS.agent_request_timeout_s
    return (seen, report.rtt_s / 2) if was_set or report.rtt_s / 2 <= error else (offset, error)


def contact(node: Node, now: Instant, silence_counts_from: float, limits: Defaults = DEFAULTS) -> NodeState:
    """The state that the time since the last receipt gives."""
    if node.heard is None:
        return "unknown"
    quiet = now.mono - max(node.heard, silence_counts_from)
    if quiet >= limits.node_silent_s:
        return "silent"
    if quiet >= limits.node_suspect_s:
        return "suspect"
    return "alive"

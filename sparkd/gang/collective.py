"""The collective probe of some nodes: its ranks, what they have reached, and when it is over. Pure.

Its ranks are ranks like any other to an agent: fenced by a number that grows, started once, killed when no
document lists them. They belong to no deployment: their name is none that a deployment could have.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sparkd.diagnosis.catalogue import judge
from sparkd.diagnosis.evidence import Evidence
from sparkd.engine.collective import probe_words
from sparkd.engine.plugin import MODS_VARIABLE
from sparkd.fleet.nodes import NOTHING_LEFT, Node
from sparkd.records.collective import STAGES, CollectiveRank, CollectiveReport, CollectiveTest, Transport
from sparkd.records.defaults import MIB, Defaults
from sparkd.records.intent import Descriptor, Intent
from sparkd.records.names import RankName
from sparkd.records.rank import Address, MemoryNeed, RankSpec
from sparkd.records.report import Exit, RankReport

PROBE_NAME: Final = "probe-"
"""In the place of a deployment's name, which never ends so."""

_DEBUG: Final = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}
"""NCCL says which way it took."""


@dataclass(frozen=True, slots=True)
class CollectiveAsk:
    """A probe that could be run. `specs` are ranks of the gang, whose environment and runtime it takes.

    `key` is over all that a result depends on; `link_mbit` what the links in use should carry, each way.
    """

    key: str
    specs: tuple[RankSpec, ...]
    link_mbit: float | None = None


@dataclass(frozen=True, slots=True)
class Collective:
    """A probe that runs. Moments are on the coordinator's monotonic clock."""

    number: int
    key: str
    nodes: tuple[str, ...]
    specs: tuple[RankSpec, ...]
    began: float
    within_s: float
    """From the last rank's `imported` to the end of all."""
    link_mbit: float | None = None
    imported_at: float | None = None


def begin(
    ask: CollectiveAsk,
    nodes: Sequence[str],
    number: int,
    port: int,
    now: float,
    *,
    within_s: float,
    most_bytes: int,
    limits: Defaults,
) -> Collective:
    """`number` is greater than that of every probe that any of the nodes has heard of."""
    ranks = len(ask.specs)
    ladder_s = within_s * limits.collective_ladder_share
    specs = tuple(
        _spec(
            spec,
            number,
            probe_words(
                spec.rank,
                ranks,
                ask.specs[0].rendezvous.host,
                port,
                most_bytes=most_bytes,
                ladder_s=ladder_s,
                within_s=limits.collective_s,
            ),
            port,
        )
        for spec in ask.specs
    )
    return Collective(number, ask.key, tuple(nodes), specs, now, within_s, ask.link_mbit)


def _spec(spec: RankSpec, number: int, words: tuple[str, ...], port: int) -> RankSpec:
    nothing = Intent(profile_name="", profile={})
    return replace(
        spec,
        name=str(RankName(PROBE_NAME, number, spec.rank)),
        deployment=PROBE_NAME,
        generation=number,
        kind="probe",
        args=words,
        env={name: value for name, value in spec.env.items() if name != MODS_VARIABLE} | _DEBUG,
        rendezvous=Address(spec.rendezvous.host, port),
        descriptor=Descriptor(PROBE_NAME, nothing, 0, number, (), 0),
        probe=None,
        weights_bytes=0,
        secrets={},
        memory=MemoryNeed(),
    )


def wanted_of(collective: Collective) -> Mapping[str, RankSpec]:
    return dict(zip(collective.nodes, collective.specs, strict=True))


def stuck_on(node: Node) -> RankReport | None:
    """A rank of a probe, whoever asked for it, that SIGKILL does not end: nothing starts beside it."""
    return next((report for report in node.existing(PROBE_NAME) if report.state == "unkillable"), None)


def stuck_words(report: RankReport) -> str:
    """`sparkd-probe--g7-r1, which SIGKILL does not end (pid 812 (python3) state D): reboot it`, the node."""
    remains = ", ".join(report.remains) or "still there"
    return f"{report.name}, which SIGKILL does not end ({remains}): reboot it"


def observe(collective: Collective, nodes: Mapping[str, Node], now: float) -> Collective:
    """Note the moment from which the short time counts: until then somebody still loads torch."""
    if collective.imported_at is not None:
        return collective
    ranks = ranks_of(collective, nodes)
    if all(STAGES.index(rank.stage) >= STAGES.index("imported") for rank in ranks):
        return replace(collective, imported_at=now)
    return collective


def ranks_of(collective: Collective, nodes: Mapping[str, Node]) -> tuple[CollectiveRank, ...]:
    return tuple(_rank(spec, nodes.get(node), node) for node, spec in wanted_of(collective).items())


def _rank(spec: RankSpec, node: Node | None, node_id: str) -> CollectiveRank:
    if node is None:
        return CollectiveRank(spec.rank, node_id, alive=False, unable="its node is not known")
    report = node.reports.get(spec.name)
    said = report.collective if report is not None else None
    told = said or CollectiveReport()
    ended, cut = _ended(report, told)
    refusal = node.refusals.get(spec.name)
    unable = told.unable or cut or (f"its node did not start it: {refusal.reason}" if refusal else "")
    if not node.in_contact and told.stage != "done":
        unable = unable or "its node is not in contact"
    return CollectiveRank(
        spec.rank,
        node.name,
        told.stage,
        report is not None and not ended and report.state not in NOTHING_LEFT,
        ended,
        told.error,
        unable,
        report.transport if report is not None else None,
        spec.rdma,
    )


def _ended(report: RankReport | None, told: CollectiveReport) -> tuple[str, str]:
    """How its process ended if that was not well; and, if it was ended by somebody, by whom."""
    if report is None:
        return "", ""
    if report.condemned is not None:
        return "its node ended it", f"its node ended it: {report.condemned.reason}"
    if report.fell is None or told.stage == "done":
        return "", ""
    how = report.exit
    if told.error or told.unable:
        return report.fell, ""
    if _is_time_over(how):
        return "its own time was over", ""
    if told.stage == "started":
        last = f": {report.lines[-1]}" if report.lines else ""
        return report.fell, f"its process ended before it had loaded torch: {report.fell}{last}"
    if how is not None and how.signal is not None:
        return report.fell, f"its process was ended: {report.fell}"
    return report.fell, ""


_SIGALRM: Final = 14


def _is_time_over(how: Exit | None) -> bool:
    return how is not None and how.signal == _SIGALRM


def look(collective: Collective, nodes: Mapping[str, Node], now: float, limits: Defaults) -> CollectiveTest:
    """How it stands. `over`, with verdicts, when all are done, it cannot be done, or time is up."""
    ranks = ranks_of(collective, nodes)
    reports = [
        nodes[node].reports.get(spec.name) for node, spec in wanted_of(collective).items() if node in nodes
    ]
    told = [report.collective for report in reports if report is not None and report.collective is not None]
    ways: set[Transport] = {rank.transport for rank in ranks if rank.transport is not None}
    test = CollectiveTest(
        ranks,
        backend=next((one.backend for one in told if one.backend), ""),
        transport="sockets" if "sockets" in ways else "rdma" if ways else None,
        steps=max((one.steps for one in told), key=len, default=()),
        link_mbit=collective.link_mbit,
        took_s=now - collective.began,
    )
    why = _over(collective, test, now, limits)
    if why is None:
        return replace(test, reason=waits_for(test))
    if not test.passed and _is_late(collective, limits):
        # Whoever is not done had too little time, its own alarm included; an error told by a rank counts.
        late = "torch was loaded too late for a try"
        test = replace(test, ranks=tuple(_excused(rank, late) for rank in test.ranks))
    test = replace(test, over=True, reason=why)
    found = [one.verdict for one in judge(Evidence(collective=test))]
    return replace(test, verdicts=tuple(found))


def _excused(rank: CollectiveRank, late: str) -> CollectiveRank:
    tried = rank.error or rank.unable or rank.stage in {"started", "done"}
    return rank if tried else replace(rank, unable=late)


def deadline_of(collective: Collective, limits: Defaults) -> float:
    hard = collective.began + limits.collective_s
    if collective.imported_at is None:
        return hard
    return min(hard, collective.imported_at + collective.within_s)


def _is_late(collective: Collective, limits: Defaults) -> bool:
    """Whether torch came so late that the hard end leaves less than the short time: that proves nothing."""
    at = collective.imported_at
    return at is not None and at + collective.within_s > collective.began + limits.collective_s


def _over(collective: Collective, test: CollectiveTest, now: float, limits: Defaults) -> str | None:
    if test.passed:
        return "all ranks summed up"
    for rank in test.ranks:
        if rank.unable:
            return f"rank {rank.rank} on {rank.node} could not try: {rank.unable}"
    # The first to fail has a reason, the others only lose their peer: each gets the time to say its own.
    broken = [rank for rank in test.ranks if rank.error or rank.ended]
    settled = all(rank.error or rank.ended or not rank.alive for rank in test.ranks)
    if broken and settled:
        return _words(broken[0])
    if now >= deadline_of(collective, limits):
        if collective.imported_at is None:
            return f"not all ranks were ready within {limits.collective_s:.0f} s"
        return f"not all ranks were done within {deadline_of(collective, limits) - collective.began:.0f} s"
    return None


def _words(rank: CollectiveRank) -> str:
    return f"rank {rank.rank} on {rank.node}: {rank.error or rank.ended}"


_NEXT: Final = {
    "started": "to load torch",
    "imported": "to reach the rendezvous",
    "met": "to join the group",
    "joined": "to do the first sum",
    "summed": "to do the larger sums",
    "done": "to end",
}


def waits_for(test: CollectiveTest) -> str:
    """`rank 1 on spark-2 to reach the rendezvous`: of the ranks that are furthest behind."""
    behind = min((rank.stage for rank in test.ranks), key=STAGES.index)
    who = ", ".join(f"rank {rank.rank} on {rank.node}" for rank in test.ranks if rank.stage == behind)
    return f"{who} {_NEXT[behind]}"


def slowest(test: CollectiveTest) -> CollectiveRank:
    return min(test.ranks, key=lambda rank: STAGES.index(rank.stage))


def summary(test: CollectiveTest) -> str:
    """`8 B in 42 us, 64 MiB at 151 Gb/s, nccl over rdma`."""
    way = f"{test.backend} over {test.transport}" if test.transport else test.backend
    return ", ".join([*_figures(test), way])


def _figures(test: CollectiveTest) -> Iterator[str]:
    if test.latency_s is not None:
        yield f"{test.steps[0].bytes} B in {test.latency_s * 1e6:.0f} us"
    # Below a MiB it is the latency once more, and says nothing of what a link carries.
    if test.steps and test.steps[-1].bytes >= MIB:
        last = test.steps[-1]
        yield f"{last.bytes // MIB} MiB at {test.bus_mbit(last) / 1000:.1f} Gb/s"

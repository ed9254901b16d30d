"""Deadlines of phases stretch with progress on any rank, and with nothing else (design §3.4)."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkd.clock import Instant
from sparkd.fleet.nodes import Node
from sparkd.gang import machine
from sparkd.gang.record import GangRecord
from sparkd.gang.state import Gang, Tick, World
from sparkd.records.defaults import DEFAULTS
from sparkd.records.intent import Descriptor, Intent
from sparkd.records.rank import Address, RankSpec
from sparkd.records.report import RankReport

INTENT = Intent("tiny", {"layout": {"tp": 2}})


def spec(rank: int, boot_max_s: float) -> RankSpec:
    return RankSpec(
        name=f"sparkd-d-g1-r{rank}",
        deployment="d",
        generation=1,
        rank=rank,
        ranks=2,
        runtime="process",
        engine="default",
        args=(),
        env={},
        rendezvous=Address("a", 1),
        descriptor=Descriptor("d", INTENT, 1, 1, ("a", "b"), 8100),
        boot_max_s=boot_max_s,
    )


def loading(boot_max_s: float = 1e9) -> Gang:
    specs = (spec(0, boot_max_s), spec(1, boot_max_s))
    record = GangRecord("d", INTENT, phase="loading", nodes=("a", "b"), generation=1, specs=specs)
    return Gang(record, launched_at=0.0)


def world(now: float, ages: tuple[float, float]) -> World:
    nodes = {}
    for rank, (name, age) in enumerate(zip("ab", ages, strict=True)):
        report = RankReport(f"sparkd-d-g1-r{rank}", "running", phase="loading", progress_age_s=age)
        node = Node(name, name, greeted=True, heard=now, state="alive", reports={report.name: report})
        nodes[name] = node
    return World(nodes)


def play(marks: list[tuple[float, int]], until: float, boot_max_s: float = 1e9) -> float | None:
    """Tick once in 30 s; `marks` are (moment, rank) of progress. When the gang was ended, or None."""
    gang, now = loading(boot_max_s), 0.0
    while now < until:
        now += 30.0
        last = [max((at for at, who in marks if who == rank and at <= now), default=0.0) for rank in (0, 1)]
        gang, _ = machine.step(gang, Tick(), world(now, (now - last[0], now - last[1])), Instant(now, now))
        if gang.record.phase != "loading":
            return now
    return None


@settings(max_examples=60)
@given(
    gaps=st.lists(st.floats(1.0, DEFAULTS.loading_s - 31.0), min_size=1, max_size=12),
    rank=st.sampled_from([0, 1]),
)
def test_progress_of_one_rank_within_the_allowance_keeps_the_gang(gaps: list[float], rank: int) -> None:
    marks, at = [], 0.0
    for gap in gaps:
        at += gap
        marks.append((at, rank))
    assert play(marks, until=at) is None


@settings(max_examples=60)
@given(last=st.floats(0.0, 5000.0), rank=st.sampled_from([0, 1]))
def test_without_progress_the_gang_is_ended_in_time(last: float, rank: int) -> None:
    steps = int(last // 600) + 1
    marks = [(last * (n + 1) / steps, rank) for n in range(steps)]
    ended = play(marks, until=last + DEFAULTS.loading_s + 120.0)
    assert ended is not None
    assert last + DEFAULTS.loading_s <= ended <= last + DEFAULTS.loading_s + 60.0


def test_nothing_stretches_the_hard_cap() -> None:
    marks = [(float(at), 0) for at in range(0, 20_000, 60)]
    ended = play(marks, until=20_000.0, boot_max_s=7200.0)
    assert ended is not None
    assert 7200.0 <= ended <= 7230.0


def test_an_old_report_is_no_fresh_progress() -> None:
    """A node's last report stays in view while nothing new comes; its ages count from its receipt."""
    now = DEFAULTS.loading_s + 61.0
    seen = world(60.0, (0.0, 0.0))
    nodes = {name: replace(node, heard=60.0) for name, node in seen.nodes.items()}
    gang, _ = machine.step(loading(), Tick(), World(nodes), Instant(now, now))
    assert gang.record.phase != "loading"

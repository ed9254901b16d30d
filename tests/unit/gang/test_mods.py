"""A rank that runs without a mod that its profile requires must not serve, and no retry cures that."""

import pytest

from sparkd.clock import Instant
from sparkd.diagnosis.catalogue import cause_of_rank
from sparkd.fleet.nodes import Node
from sparkd.gang import machine
from sparkd.gang.record import GangRecord
from sparkd.gang.state import Gang, Tick, World
from sparkd.records.intent import Descriptor, Intent
from sparkd.records.rank import Address, RankSpec
from sparkd.records.report import RankReport
from sparkd.records.status import Phase

INTENT = Intent("mimo", {"layout": {"tp": 2}})
WHY = "required mod mimo-config is missing in VLLM::Worker_TP1 (pid 7): it never told of it"


def gang(phase: Phase) -> Gang:
    specs = tuple(
        RankSpec(
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
        )
        for rank in (0, 1)
    )
    record = GangRecord("d", INTENT, phase=phase, nodes=("a", "b"), generation=1, specs=specs)
    return Gang(record, launched_at=0.0)


def world(missing: str | None) -> World:
    nodes = {}
    for rank, name in enumerate("ab"):
        report = RankReport(
            f"sparkd-d-g1-r{rank}",
            "running",
            phase="warming",
            mods_missing=missing if rank else None,
        )
        nodes[name] = Node(
            name, f"node-{name}", greeted=True, heard=10.0, state="alive", reports={report.name: report}
        )
    return World(nodes)


@pytest.mark.parametrize("phase", ["loading", "warming"])
def test_a_missing_mod_ends_the_gang_for_good_and_says_where(phase: Phase) -> None:
    ended, _ = machine.step(gang(phase), Tick(), world(WHY), Instant(10.0, 10.0))
    assert ended.record.phase == "stopping"
    assert ended.record.fall is not None
    assert (ended.record.fall.rank, ended.record.fall.node) == (1, "node-b")
    (verdict,) = ended.record.verdicts
    assert verdict.id == "MOD_MISSING"
    assert WHY in verdict.title
    assert "sparkd mods check" in verdict.remedy
    assert "gave up" in ended.record.reason


def test_nothing_missing_ends_nothing() -> None:
    left, _ = machine.step(gang("warming"), Tick(), world(None), Instant(10.0, 10.0))
    assert left.record.phase == "warming"


def test_a_rank_that_ended_because_a_mod_refused_has_that_cause() -> None:
    last = "sparkd_mods._framework.plugin.ModRefusedError: sparkd mod mimo-config cannot be applied: …"
    found = cause_of_rank(("Traceback (most recent call last):", last))
    assert found is not None
    assert (found.id, found.retry) == ("MOD_MISSING", "never")

"""When a collective probe is over, and what it is over with: by what its nodes have said."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from sparkd.fleet.nodes import Node
from sparkd.gang.collective import (
    PROBE_NAME,
    Collective,
    CollectiveAsk,
    begin,
    deadline_of,
    look,
    observe,
    summary,
    waits_for,
)
from sparkd.records.collective import CollectiveReport, CollectiveTest, Stage, Step
from sparkd.records.defaults import DEFAULTS, MIB
from sparkd.records.intent import Descriptor, Intent
from sparkd.records.names import is_deployment_name, parse_rank_name
from sparkd.records.rank import Address, RankSpec
from sparkd.records.report import Condemned, Exit, RankReport, Refusal

NODES = ("a", "b", "c")
NO_TORCH = "torch cannot be loaded: ModuleNotFoundError"


def rank(number: int) -> RankSpec:
    return RankSpec(
        name=f"sparkd-tiny-g3-r{number}",
        deployment="tiny",
        generation=3,
        rank=number,
        ranks=3,
        runtime="systemd",
        engine="default",
        args=("serve", "/models/tiny"),
        env={"NCCL_SOCKET_IFNAME": "=fabric", "SPARKD_MODS": "[]", "NCCL_DEBUG": "WARN"},
        rendezvous=Address("192.168.100.1", 29600),
        descriptor=Descriptor("tiny", Intent("tiny", {"x": 1}), 1, 3, NODES, 8100),
        secrets={"VLLM_API_KEY": "secret"},
        rdma=True,
    )


def probe(within_s: float = 10.0) -> Collective:
    ask = CollectiveAsk("key", tuple(rank(number) for number in range(3)), 200_000.0)
    return begin(ask, NODES, 7, 29601, 100.0, within_s=within_s, most_bytes=64 * MIB, limits=DEFAULTS)


def nodes(*stages: Stage, **changes: object) -> dict[str, Node]:
    """Each node's rank at a stage; None: not started."""
    found = {}
    for number, stage in enumerate(stages):
        name = f"sparkd-{PROBE_NAME}-g7-r{number}"
        report = RankReport(name, "running", collective=CollectiveReport(stage))
        node = Node(NODES[number], NODES[number].upper(), greeted=True, state="alive", reports={name: report})
        found[NODES[number]] = node
    return found


def ends(known: Mapping[str, Node], node: str, **changes: object) -> dict[str, Node]:
    """The rank of that node has ended, or said something."""
    there = known[node]
    (report,) = there.reports.values()
    said = {name: changes.pop(name) for name in ("error", "unable") if name in changes}
    told = replace(report.collective or CollectiveReport(), **said)  # type: ignore[arg-type]
    changed = replace(report, **({"collective": told} | changes))  # type: ignore[arg-type]
    return {**known, node: replace(there, reports={report.name: changed})}


def at(known: Mapping[str, Node], seconds: float, one: Collective | None = None) -> CollectiveTest:
    one = observe(one or probe(), known, 100.0 + seconds)
    return look(one, known, 100.0 + seconds, DEFAULTS)


def ids(test: CollectiveTest) -> list[tuple[str, str | None]]:
    return [(one.id, one.node) for one in test.verdicts]


def test_its_ranks_are_nobodys_deployment_and_carry_no_secret() -> None:
    for number, spec in enumerate(probe().specs):
        parsed = parse_rank_name(spec.name)
        assert parsed == (PROBE_NAME, 7, number) == (spec.deployment, spec.generation, spec.rank)
        assert not is_deployment_name(spec.deployment)
        assert (spec.kind, spec.runtime, spec.rdma, spec.secrets) == ("probe", "systemd", True, {})
        assert spec.descriptor.intent.profile == {}, "nobody builds a deployment from it"
        assert spec.env == {
            "NCCL_SOCKET_IFNAME": "=fabric",
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,NET",
        }
        words = dict(zip(spec.args[::2], spec.args[1::2], strict=True))
        assert (words["--rank"], words["--host"], words["--port"]) == (str(number), "192.168.100.1", "29601")
        assert (words["--most"], words["--within"], words["--ladder"]) == (str(64 * MIB), "60", "5")


def test_all_done_is_passed() -> None:
    test = at(nodes("done", "done", "done"), 5)
    assert (test.over, test.passed, test.verdicts) == (True, True, ())


def test_the_short_time_counts_from_the_last_import() -> None:
    one = probe()
    slow = nodes("met", "imported", "started")
    assert observe(one, slow, 130.0).imported_at is None
    assert deadline_of(one, DEFAULTS) == 160.0
    assert not at(slow, 59.0).over
    ready = observe(one, nodes("met", "imported", "imported"), 140.0)
    assert deadline_of(ready, DEFAULTS) == 150.0
    assert observe(ready, slow, 145.0) == ready, "it is noted once"
    late = observe(one, nodes("met", "imported", "imported"), 155.0)
    assert deadline_of(late, DEFAULTS) == 160.0, "a minute is a minute"


def test_who_does_not_arrive_is_named() -> None:
    one = observe(probe(), nodes("met", "met", "imported"), 110.0)
    assert not at(nodes("met", "met", "imported"), 19.9, one).over
    test = at(nodes("met", "met", "imported"), 20.0, one)
    assert ids(test) == [("COLLECTIVE_ABSENT", "C")]
    assert test.verdicts[0].rank == 2
    assert "rank 2 on C: imported, its process lives" in test.verdicts[0].evidence
    assert waits_for(test) == "rank 2 on C to reach the rendezvous"


@pytest.mark.parametrize(
    ("stage", "title"), [("met", "form a group"), ("joined", "first sum"), ("summed", "larger one")]
)
def test_a_collective_that_does_not_come_about(stage: Stage, title: str) -> None:
    one = observe(probe(), nodes(stage, stage, stage), 110.0)
    test = at(nodes(stage, stage, stage), 20.0, one)
    assert ids(test) == [("COLLECTIVE_FAILED", None)]
    assert title in test.verdicts[0].title


def test_an_error_is_told_when_all_have_had_their_say() -> None:
    known = ends(
        nodes("joined", "joined", "joined"), "b", error="NCCL error: unhandled system error", fell="code 1"
    )
    assert not at(known, 3).over, "what the others say may be why"
    for node in ("a", "c"):
        known = ends(known, node, error="Connection closed by peer", fell="code 1")
    assert ids(at(known, 4)) == [("COLLECTIVE_FAILED", None)]


UNABLE: dict[str, dict[str, object]] = {
    "no torch": {"unable": NO_TORCH, "fell": "exit code 3"},
    "killed": {"fell": "killed", "exit": Exit("", "leader", 1, None, 9, "shim", 0.0, 0.0)},
    "memory": {"condemned": Condemned("MEMORY_CRITICAL", "0.8 GiB are available")},
    "no module": {
        "fell": "exit code 1",
        "lines": ("No module named sparkd_mods",),
        "collective": CollectiveReport(),
    },
}


@pytest.mark.parametrize("how", UNABLE)
def test_what_could_not_be_tried_only_warns(how: str) -> None:
    test = at(ends(nodes("joined", "joined", "joined"), "b", **dict(UNABLE[how])), 3)
    assert (test.over, test.passed) == (True, False)
    assert [(one.id, one.severity, one.node) for one in test.verdicts] == [("FABRIC_UNPROVEN", "warn", "B")]


def test_a_node_that_refuses_or_goes_away_proves_nothing() -> None:
    known = nodes("met", "met", "met")
    refused = {
        **known,
        "c": replace(
            known["c"],
            reports={},
            refusals={f"sparkd-{PROBE_NAME}-g7-r2": Refusal(f"sparkd-{PROBE_NAME}-g7-r2", "engine", "none")},
        ),
    }
    assert ids(at(refused, 1)) == [("FABRIC_UNPROVEN", "C")]
    away = {**known, "c": replace(known["c"], state="silent")}
    assert ids(at(away, 1)) == [("FABRIC_UNPROVEN", "C")]


def test_one_that_never_loads_torch_is_slow_and_no_fault_of_the_fabric() -> None:
    test = at(nodes("met", "imported", "started"), 60.0)
    assert [(one.id, one.severity, one.node) for one in test.verdicts] == [("FABRIC_UNPROVEN", "warn", "C")]


def test_its_own_time_over_is_no_kill() -> None:
    alarm = Exit("", "leader", 1, None, 14, "shim", 0.0, 0.0)
    known = nodes("met", "met", "imported")
    for node in NODES:
        known = ends(known, node, fell="killed by signal 14", exit=alarm, state="gone")
    assert ids(at(known, 15)) == [("COLLECTIVE_ABSENT", "C")]


def test_rdma_that_was_not_taken() -> None:
    known = nodes("done", "done", "done")
    known = ends(known, "a", transport="rdma")
    known = ends(known, "b", transport="sockets")
    test = at(known, 5)
    assert (test.transport, ids(test)) == ("sockets", [("TRANSPORT_SOCKETS", "B")])


def test_bandwidth_is_what_each_link_carries_each_way() -> None:
    test = at(nodes("done", "done", "done"), 5)
    steps = (Step(8, 40e-6), Step(64 << 20, 0.01))
    test = replace(test, steps=steps, backend="nccl", transport="rdma")
    assert test.bus_mbit(steps[1]) == pytest.approx((64 << 20) * 8 * 4 / 3 / 0.01 / 1e6)
    assert test.best_mbit == test.bus_mbit(steps[1])
    assert (test.latency_s, summary(test)) == (40e-6, "8 B in 40 us, 64 MiB at 71.6 Gb/s, nccl over rdma")
    assert summary(replace(test, steps=steps[:1])) == "8 B in 40 us, nccl over rdma"


def test_torch_that_comes_late_leaves_no_time_and_blames_no_fabric() -> None:
    began = 100.0
    late = observe(probe(), nodes("imported", "imported", "imported"), began + DEFAULTS.collective_s - 3)
    end = began + DEFAULTS.collective_s
    assert deadline_of(late, DEFAULTS) == end
    test = look(late, nodes("met", "met", "imported"), end, DEFAULTS)
    assert test.over
    assert {one.id for one in test.verdicts} == {"FABRIC_UNPROVEN"}

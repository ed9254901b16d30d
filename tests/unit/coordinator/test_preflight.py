"""A preflight for people, of nodes that answer oddly."""

import asyncio
from dataclasses import dataclass, replace
from typing import Any, cast

from sparkd.clock import Instant
from sparkd.coordinator.preflight import Check
from sparkd.coordinator.reconciler import Reconciler
from sparkd.fleet.state import Fleet
from sparkd.profile.load import parse_source
from sparkd.profile.merge import resolve
from sparkd.records.preflight import Preflight
from sparkd.records.report import TaskResult
from tests.sim.world import World

PROFILE = "schema: sparkd/v1\nname: tiny\nmodel: {path: tiny}\nlayout: {tp: 2}\napi: {port: 8100}\n"
GOOD: dict[str, dict[str, Any]] = {
    "files": {"model": {"path": "/models/tiny"}},
    "facts": {"wall": 0.0},
    "port": {"ports": [{"port": 8100, "for": "api", "free": True}]},
}


@dataclass
class Answering:
    """A coordinator whose nodes all answer at once, in these words."""

    fleet: Fleet
    answers: dict[str, dict[str, Any]]

    def now(self) -> Instant:
        return Instant(0.0, 0.0)

    async def ask(self, _node: str, kind: str, _args: dict[str, Any], _within_s: float) -> TaskResult:
        return TaskResult(kind, ok=True, result=self.answers[kind])


def checked(**odd: dict[str, Any]) -> Preflight:
    world = World(31)
    world.run(0.3)
    fleet = world.coordinator.fleet
    assert fleet is not None
    wanted = replace(resolve(parse_source(PROFILE, "p.yaml")).intent, nodes=("a", "b"))
    check = Check(cast("Reconciler", Answering(fleet, GOOD | odd)))
    return asyncio.run(check.of_launch("new", wanted))


def told(found: Preflight) -> dict[str, str]:
    return {verdict.id: verdict.evidence for verdict in found.verdicts}


def test_a_good_answer_is_no_error() -> None:
    assert "PREFLIGHT_ERROR" not in told(checked())


def test_a_network_that_cannot_be_read_is_told() -> None:
    interface = {"name": "eth0", "up": True, "addresses": ["nonsense"]}
    found = checked(facts={"wall": 0.0, "fabric": {"interfaces": [interface]}})
    assert "nonsense" in told(found)["PREFLIGHT_ERROR"]


def test_an_answer_about_ports_that_is_none_is_told() -> None:
    for ports in ({"ports": ["8100"]}, {}, {"ports": [{"free": False}]}):
        assert "ValidationError" in told(checked(port=ports))["PREFLIGHT_ERROR"]


def test_a_taken_port_is_told_with_its_owner() -> None:
    found = checked(port={"ports": [{"port": 8100, "for": "api", "free": False, "owner": "pid 7 nginx"}]})
    assert "pid 7 nginx" in told(found)["PORT_IN_USE"]

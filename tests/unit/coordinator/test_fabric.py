"""A test of the fabric, of nodes whose answers take time."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

from sparkd.clock import Instant
from sparkd.coordinator.fabric import fabric_test
from sparkd.coordinator.reconciler import Reconciler
from sparkd.fleet.state import Fleet
from sparkd.records.defaults import DEFAULTS
from sparkd.records.report import TaskResult
from tests.sim.world import World


@dataclass
class Calling:
    """A coordinator whose nodes can all reach each other, as long as the other one listens."""

    fleet: Fleet
    slow: str
    mono: float = 0.0
    listening: dict[str, float] = field(default_factory=dict)

    def now(self) -> Instant:
        return Instant(self.mono, self.mono)

    async def ask(self, node: str, kind: str, args: dict[str, Any], within_s: float) -> TaskResult | None:
        result: dict[str, Any] = {"wall": 0.0}
        if "listen" in args:
            if node == self.slow:
                self.mono += within_s
                return None
            self.listening[node] = self.mono
            result = {"port": 40000}
        elif "reach" in args:
            result = {"reached": [self._reached(target["host"]) for target in args["reach"]]}
        elif "heard" in args:
            result = {"heard": []}
        return TaskResult(kind, ok=True, result=result)

    def _reached(self, host: str) -> dict[str, Any]:
        closed = self.mono > self.listening[host] + DEFAULTS.fabric_listen_s
        return {"host": host, "tcp": "connection refused" if closed else None, "udp": not closed}


def test_a_slow_node_does_not_make_a_firewall_of_the_others() -> None:
    world = World(31)
    world.run(0.3)
    fleet = world.coordinator.fleet
    assert fleet is not None
    tested = asyncio.run(fabric_test(cast("Reconciler", Calling(fleet, slow="c"))))
    assert {(verdict.id, verdict.node) for verdict in tested.verdicts} == {("FABRIC_UNTESTED", "c")}

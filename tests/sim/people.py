"""What people ask of the simulated cluster, and what of it was acknowledged."""

from typing import TYPE_CHECKING

from sparkd.errors import SparkdError
from sparkd.fleet import machine as fleet_machine
from sparkd.records.intent import Intent
from tests.sim.coordinator import LIMITS

if TYPE_CHECKING:
    from tests.sim.world import World


class People:
    def __init__(self, world: "World") -> None:
        self.world = world

    def up(self, name: str, wish: Intent) -> bool:
        """Whether it was acknowledged."""
        try:
            answer = self.world.apply(lambda fleet, now: fleet_machine.up(fleet, name, wish, now, LIMITS))
        except SparkdError as error:
            self.world.tell(f"up {name}: {error}")
            return False
        if answer is None:
            self.world.asked[name] = "unknown"  # it died over it: the wish was written down, or not
            return False
        self.world.tell(f"up {name}: {answer}")
        self.world.asked[name] = "up"
        return True

    def down(self, name: str) -> bool:
        try:
            done = self.world.apply(lambda fleet, now: (*fleet_machine.down(fleet, name, now, LIMITS), True))
        except SparkdError as error:
            self.world.tell(f"down {name}: {error}")
            return False
        if done is None:
            self.world.asked[name] = "unknown"
        else:
            self.world.tell(f"down {name}: acknowledged")
            self.world.asked[name] = "down"
        return bool(done)

    def restart(self, name: str, generation: int) -> bool:
        try:
            done = self.world.apply(
                lambda fleet, now: (*fleet_machine.restart(fleet, name, generation, now, LIMITS), True)
            )
        except SparkdError as error:
            self.world.tell(f"restart {name}: {error}")
            return False
        return bool(done)

    def drain(self, node: str, *, drained: bool) -> None:
        self.world.apply(
            lambda fleet, now: (
                *fleet_machine.drain(fleet, node, drained=drained, now=now, limits=LIMITS),
                True,
            )
        )

"""What can go wrong in the simulated cluster: network, nodes, their ranks, the coordinator and its disk."""

from typing import TYPE_CHECKING

from sparkd.fleet import machine as fleet_machine
from tests.sim.coordinator import HOLDER, LIMITS, Coordinator

if TYPE_CHECKING:
    from tests.sim.world import World


class Faults:
    def __init__(self, world: "World") -> None:
        self.world = world
        self._was_heard = False

    def isolate(self) -> None:
        """The coordinator itself is cut off from everything; the nodes see each other."""
        self.world.tell("the coordinator is cut off")
        self.world.isolated = True
        for name in self.world.nodes:
            self.world.cut |= {(name, "*"), ("*", name)}

    def add_rival(self, *, foreign: bool, misled: tuple[str, ...]) -> None:
        """A second coordinator: of another holder, or on a copy of our state. Some agents turn to it."""
        if self.world.rival is not None:
            return
        self.world.tell(f"a second coordinator ({'another holder' if foreign else 'a copy'})")
        self.world.rival = Coordinator(self.world.coordinator.enrolled, "another" if foreign else HOLDER)
        self.world.rival.starts = 100
        self.world.rival.lives = {(60, "x")} if foreign else set(self.world.coordinator.lives)
        self.world.rival.records = {} if foreign else dict(self.world.coordinator.records)
        self.world.rival.start(self.world.now)
        self._rival_tick()
        for name in misled:
            self.world.links[name].greeted = False
            self.world.hurry(name)

    def _rival_tick(self) -> None:
        if self.world.rival is not None and self.world.rival.fleet is not None:
            self.world.apply(
                lambda fleet, now: (*fleet_machine.tick(fleet, now, LIMITS), None), self.world.rival
            )
            self.world.schedule(LIMITS.tick_s, self._rival_tick)

    def end_rival(self) -> None:
        if self.world.rival is not None:
            self.world.rival.kill()
            self.world.rival = None

    def copy_database(self) -> None:
        self.world.coordinator.copies.append(
            (set(self.world.coordinator.lives), dict(self.world.coordinator.records))
        )

    def lose_database(self) -> None:
        """Deleted while the coordinator is dead."""
        self._note_who_heard()
        self.world.tell("the database is deleted")
        self.world.kill_coordinator("with its database")
        self._doubt_what_no_node_heard()
        self.world.coordinator.lives, self.world.coordinator.records = set(), {}

    def restore_copy(self) -> None:
        """An older copy is put back while the coordinator is dead."""
        if self.world.coordinator.copies:
            self._note_who_heard()
            self.world.tell("an older copy of the database is restored")
            self.world.kill_coordinator("for the restore")
            self._doubt_what_no_node_heard()
            lives, records = self.world.coordinator.copies[0]
            self.world.coordinator.lives, self.world.coordinator.records = set(lives), dict(records)

    def _note_who_heard(self) -> None:
        """Whether some node has made the newest document true, and with it every wish so far."""
        fleet = self.world.coordinator.fleet
        self._was_heard = fleet is not None and any(
            node.settled and not self.world.nodes[node.id].disk.full for node in fleet.nodes.values()
        )

    def _doubt_what_no_node_heard(self) -> None:
        """The promise after a loss is: back to what any node has heard. The rest may go either way."""
        disks = [node.disk for node in self.world.nodes.values()]
        for name in self.world.coordinator.records:
            launched = any(spec.deployment == name for d in disks for spec, _, _ in d.rows.values())
            if not self._was_heard or not launched:
                self.world.asked[name] = "unknown"

    def cut_off(self, node: str, *, to: bool = True, back: bool = True, deep: bool = False) -> None:
        """`deep`: the coordinator cannot reach the node's API either."""
        self.world.tell(f"{node} is cut off (to {to}, back {back}, deep {deep})")
        if deep:
            self.world.unreachable.add(node)
        if to:
            self.world.cut.add((node, "*"))
        if back:
            self.world.cut.add(("*", node))

    def mend(self, node: str) -> None:
        self.world.cut -= {(node, "*"), ("*", node)}
        self.world.unreachable.discard(node)

    def heal(self) -> None:
        self.world.tell("the network is whole again")
        self.world.cut.clear()
        self.world.unreachable.clear()
        self.world.isolated = False
        self.world.loss = self.world.duplicates = 0.0
        self.world.delay = 0.005

    def kill_agent(self, name: str, back_after: float = 1.0) -> None:
        node = self.world.nodes[name]
        if node.core is None or not node.powered:
            return
        self.world.tell(f"agent {name} dies")
        node.kill_agent()
        self.world.schedule(back_after, lambda: self.agent_back(name))

    def agent_back(self, name: str) -> None:
        node = self.world.nodes[name]
        if node.powered and node.core is None:
            self.world.tell(f"agent {name} is back")
            node.start_agent()
            self.world.hurry(name)

    def power_off(self, name: str, back_after: float | None) -> None:
        self.world.tell(f"{name} loses power")
        self.world.nodes[name].power_off()
        if back_after is not None:
            self.world.schedule(back_after, lambda: self.power_on(name))

    def power_on(self, name: str) -> None:
        if not self.world.nodes[name].powered:
            self.world.tell(f"{name} boots")
            self.world.nodes[name].power_on()
            self.world.hurry(name)

    def kill_rank(self, deployment: str, rank: int, signal: int | None = 9) -> None:
        for node in self.world.nodes.values():
            for name, sim in list(node.ranks.items()):
                if sim.spec.deployment == deployment and sim.spec.rank == rank and sim.state == "running":
                    self.world.tell(f"{name} is killed")
                    node.rank_falls(name, f"ended by signal {signal}", signal)

    def freeze_rank(self, deployment: str, rank: int) -> None:
        for sim in self.world.living(deployment):
            if sim.state == "running":
                head = next((r for r in self.world.living(deployment) if r.spec.rank == 0), None)
                if sim.spec.rank == rank:
                    self.world.tell(f"{sim.spec.name} is frozen")
                    sim.frozen = True
                    if head is not None:
                        head.frozen = True
                        self.world.urgent(head)

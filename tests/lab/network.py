"""Two switches, and each node's cables to them.

                    ┌─ mgmt ────── NODE.mgmt ══ mgmt-NODE ─┐
    the test ── .254┘                                      ├ node
                      fabric ─── NODE.fabric ══ fabric-NODE┘

The left end of a cable belongs to the room and stays in the test's hands, the right one is the node's
interface. A node has the same last byte on both networks.
"""

from dataclasses import dataclass
from typing import Final, Literal, get_args

from tests.lab.room import Room

Net = Literal["mgmt", "fabric"]
NETS: Final[tuple[Net, ...]] = get_args(Net)
_PREFIX: Final = {"mgmt": "10.77.0", "fabric": "10.78.0"}


@dataclass(frozen=True, slots=True)
class Cable:
    net: Net
    node: str
    number: int

    @property
    def port(self) -> str:
        """Its end at the switch."""
        return f"{self.node}.{self.net}"

    @property
    def interface(self) -> str:
        """Its end in the node. Names differ between nodes, as they may between real machines."""
        return f"{self.net}-{self.node}"

    @property
    def address(self) -> str:
        return f"{_PREFIX[self.net]}.{self.number}"

    @property
    def hardware_address(self) -> str:
        """The same over all boots: its peers remember it."""
        return f"02:00:00:00:{NETS.index(self.net):02x}:{self.number:02x}"


class Network:
    def __init__(self, room: Room) -> None:
        self._room = room
        for net in NETS:
            room.run("ip", "link", "add", net, "type", "bridge")
            room.run("ip", "link", "set", net, "up")
        room.run("ip", "address", "add", f"{_PREFIX['mgmt']}.254/24", "dev", "mgmt")

    def plug(self, cable: Cable) -> None:
        """Lay the cable anew: the one of an earlier boot went with its node, or lies on the floor."""
        peer = ("peer", "name", cable.interface, "address", cable.hardware_address)
        self._room.run("ip", "link", "add", cable.port, "type", "veth", *peer)
        self._room.run("ip", "link", "set", cable.port, "master", cable.net, "up")

    def unplug(self, cable: Cable) -> None:
        """Take the cable away, if there is one."""
        if cable.port in self.ports():
            self._room.run("ip", "link", "delete", cable.port)

    def carrier(self, cable: Cable, *, up: bool) -> None:
        self._room.run("ip", "link", "set", cable.port, "up" if up else "down")

    def ports(self) -> set[str]:
        lines = self._room.run("ip", "-oneline", "link").splitlines()
        return {line.split(":")[1].strip().partition("@")[0] for line in lines}

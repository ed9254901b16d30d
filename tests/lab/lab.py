"""Machines on two networks, nothing installed on them yet."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab.image import image
from tests.lab.network import Network
from tests.lab.node import Node
from tests.lab.room import Room


class Lab:
    """A room with switches; its nodes are made without power."""

    def __init__(self, names: Iterable[str], shared: dict[Path, str] | None = None) -> None:
        root = image()
        self.room = Room()
        try:
            self.network = Network(self.room)
            self.nodes = {
                name: Node(self.room, self.network, name=name, number=number, image=root, shared=shared or {})
                for number, name in enumerate(names, 1)
            }
        except BaseException:
            self.room.close()
            raise

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def boot(self, *names: str) -> None:
        """Power on what has none, all of them by default, and wait until they are up."""
        nodes = [self[name] for name in names or self.nodes]
        for node in nodes:
            if not node.on:
                node.power_on()
        for node in nodes:
            node.wait_up()

    def close(self) -> None:
        self.room.close()
        for node in self.nodes.values():
            node.wait_off()


@contextmanager
def lab(names: Iterable[str], shared: dict[Path, str] | None = None) -> Iterator[Lab]:
    made = Lab(names, shared)
    try:
        yield made
    finally:
        made.close()

"""What befalls nodes and cables. A fault that ends again is a context manager; for power see `Node`."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.lab.network import Cable, Network
from tests.lab.node import STATE, Node, until
from tests.lab.room import Room

_RELAY: Final = Path(__file__).with_name("relay.py")
_FAKETIME: Final = "/usr/lib/*/faketime/libfaketime.so.1"


@contextmanager
def pulled(network: Network, *cables: Cable) -> Iterator[None]:
    """The cables out of their sockets: neither side has a carrier."""
    for cable in cables:
        network.carrier(cable, up=False)
    try:
        yield
    finally:
        for cable in cables:
            if cable.port in network.ports():
                network.carrier(cable, up=True)


@contextmanager
def cut(room: Room, source: Cable, to: Cable) -> Iterator[None]:
    """The switch drops what goes from one cable to another, in that direction alone."""
    table = f"{source.port}-{to.port}".replace(".", "_")
    room.run("nft", "add", "table", "bridge", table)
    hook = ("{", "type", "filter", "hook", "forward", "priority", "0", ";", "}")
    room.run("nft", "add", "chain", "bridge", table, "drops", *hook)
    which = ("iifname", source.port, "oifname", to.port)
    room.run("nft", "add", "rule", "bridge", table, "drops", *which, "counter", "drop")
    try:
        yield
    finally:
        room.run("nft", "delete", "table", "bridge", table)


@contextmanager
def parted(room: Room, one: Cable, other: Cable) -> Iterator[None]:
    """Neither hears the other; both hear everybody else."""
    with cut(room, one, other), cut(room, other, one):
        yield


@contextmanager
def impaired(room: Room, cable: Cable, *, loss: float, delay_s: float, seed: int = 1) -> Iterator[None]:
    """Frames of this cable, both ways: each lost with probability `loss`, the others late by `delay_s`."""
    near, far = f"{cable.port}-", f"{cable.port}+"
    room.run("ip", "link", "add", near, "type", "veth", "peer", "name", far)
    room.run("ip", "link", "set", near, "up")
    words = [sys.executable, "-ISu", str(_RELAY), cable.port, near, str(loss), str(delay_s), str(seed)]
    relay = subprocess.Popen(
        ["nsenter", f"--net={room.network}", "--", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert relay.stdout is not None
        assert relay.stdout.readline() == b"ready\n", "the relay did not start"
        room.run("ip", "link", "set", cable.port, "nomaster")
        room.run("ip", "link", "set", far, "master", cable.net, "up")
        yield
    finally:
        relay.kill()
        relay.communicate()
        room.run("ip", "link", "delete", near)
        with contextlib.suppress(AssertionError):  # the node may have lost its power, and so its cable
            room.run("ip", "link", "set", cable.port, "master", cable.net)


def kill(node: Node, pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """A signal to a process by its pid on the node."""
    node.run("kill", f"-{number.value}", str(pid))


@contextmanager
def disk_full(node: Node) -> Iterator[None]:
    """Not a byte more fits onto the disk of /var/lib/sparkd."""
    filler = node.at(f"{STATE}/.filler")
    with filler.open("wb", buffering=0) as file:
        chunk = 1 << 20
        while chunk:
            try:
                file.write(b"\0" * chunk)
            except OSError:
                chunk //= 2
    try:
        yield
    finally:
        filler.unlink()


@contextmanager
def clock_off(node: Node, unit: str, seconds: float) -> Iterator[None]:
    """The service's wall clock is off by so much, its monotonic clock is right. Restarts it at both ends.

    Python's `time.sleep` fails under libfaketime (EINVAL); an event loop does not use it.
    """
    (library,) = node.run("sh", "-c", f"ls {_FAKETIME}").stdout.split()
    drop_in = f"/run/systemd/system/{unit}.d/clock.conf"
    settings = (f"LD_PRELOAD={library}", f"FAKETIME={seconds:+}", "FAKETIME_DONT_FAKE_MONOTONIC=1")
    text = "[Service]\n" + "".join(f"Environment={setting}\n" for setting in settings)
    node.run("mkdir", "-p", str(Path(drop_in).parent))
    node.run("tee", drop_in, feed=text)
    try:
        _restart(node, unit)
        yield
    finally:
        node.run("rm", drop_in)
        _restart(node, unit)


def _restart(node: Node, unit: str) -> None:
    node.run("systemctl", "daemon-reload")
    node.run("systemctl", "restart", unit)
    until(
        lambda: node.run("systemctl", "is-active", unit, ok=(0, 3)).returncode == 0, f"{unit} on {node.name}"
    )

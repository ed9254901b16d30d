"""The one time that a node listens: for a test of the fabric, for seconds, on an ephemeral port.

Other nodes connect, and send datagrams; everything is answered with little, nothing of it is kept or obeyed.
"""

import selectors
import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

from sparkd.records.defaults import DEFAULTS, Defaults

_PAIRS_TRIED: Final = 20
_CONNECTIONS: Final = 64
_BYTES: Final = 1 << 16


class Ears:
    """Thread-safe. Listeners close by themselves."""

    def __init__(self, limits: Defaults = DEFAULTS, proc: Path = Path("/proc")) -> None:
        self._limits = limits
        self._proc = proc
        self._heard: dict[int, set[str]] = {}

    def listen(self, address: str) -> dict[str, Any]:
        """Begin; the port of TCP and UDP alike. Raises OSError for an address that is not this node's."""
        stream, datagrams = _open_pair(address)
        port = int(stream.getsockname()[1])
        self._heard = {port: set(), **{key: self._heard[key] for key in list(self._heard)[:9]}}
        end = time.monotonic() + self._limits.fabric_listen_s
        threading.Thread(
            target=_serve, args=(stream, datagrams, self._heard[port], end), daemon=True, name="ears"
        ).start()
        return {"port": port}

    def heard(self, port: int) -> dict[str, Any]:
        """Addresses from which anything came to this port, and those that answer on the link."""
        return {"heard": sorted(self._heard.get(port, ())), "neighbours": neighbours(self._proc)}


def neighbours(proc: Path = Path("/proc")) -> dict[str, bool]:
    """By IPv4 address whether it answered the question for its link address."""
    found = {}
    with suppress(OSError):
        for line in (proc / "net/arp").read_text().splitlines()[1:]:
            words = line.split()
            if len(words) > 3:
                found[words[0]] = bool(int(words[2], 16) & 0x2)
    return found


def _open_pair(address: str) -> tuple[socket.socket, socket.socket]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for _ in range(_PAIRS_TRIED):
        with ExitStack() as stack:
            stream = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            datagrams = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
            stream.bind((address, 0))
            try:
                datagrams.bind((address, stream.getsockname()[1]))
            except OSError:
                continue  # somebody has that number for UDP
            stream.listen(_CONNECTIONS)
            stack.pop_all()
            return stream, datagrams
    raise OSError("no port is free for TCP and UDP alike")


def _serve(stream: socket.socket, datagrams: socket.socket, heard: set[str], end: float) -> None:
    with ExitStack() as stack, selectors.DefaultSelector() as waiting:
        for one in (stream, datagrams):
            stack.enter_context(one)
            one.setblocking(False)
            waiting.register(one, selectors.EVENT_READ)
        while (left := end - time.monotonic()) > 0:
            for key, _ in waiting.select(left):
                with suppress(OSError):
                    if key.fileobj is datagrams:
                        heard.add(_answer_datagram(datagrams))
                    elif key.fileobj is stream:
                        peer, sender = stream.accept()
                        stack.enter_context(peer)
                        heard.add(str(sender[0]))
                        if len(waiting.get_map()) < _CONNECTIONS:
                            peer.setblocking(False)
                            waiting.register(peer, selectors.EVENT_READ)
                    elif not _echo(key.fileobj):  # type: ignore[arg-type]  # what was registered is a socket
                        waiting.unregister(key.fileobj)


def _answer_datagram(datagrams: socket.socket) -> str:
    """Who sent it; it is told how much came."""
    data, sender = datagrams.recvfrom(_BYTES)
    datagrams.sendto(str(len(data)).encode(), sender)
    return str(sender[0])


def _echo(peer: socket.socket) -> bool:
    """Whether the other end is still there."""
    data = peer.recv(64)
    return bool(data) and peer.send(data) > 0

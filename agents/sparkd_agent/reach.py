"""How a node reaches others over the fabric: a connection, a round trip, how large a packet gets through."""

import errno
import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd.records.fabric import Reached
from sparkd_agent.ears import neighbours

_MTU_DISCOVER: Final = {socket.AF_INET: (socket.IPPROTO_IP, 10), socket.AF_INET6: (socket.IPPROTO_IPV6, 23)}
_PROBE: Final = 3
"""IP_PMTUDISC_PROBE: with the DF bit, and no matter what the kernel has learnt of the way."""
_HEADERS: Final = {socket.AF_INET: 28, socket.AF_INET6: 48}
_LARGEST: Final = 65_507
_USUAL: Final = 1500


def reach_all(
    own: str, targets: Sequence[dict[str, Any]], mtu: int | None, limits: Defaults = DEFAULTS
) -> list[Reached]:
    """Call each target (`host`, `port`) from the address `own`, side by side; in seconds at most."""
    found: dict[int, Reached] = {}

    def call(at: int, host: str, port: int) -> None:
        found[at] = reach(own, host, port, mtu, limits)

    threads = [
        threading.Thread(target=call, args=(at, str(one["host"]), int(one["port"])), daemon=True)
        for at, one in enumerate(targets)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[at] for at in range(len(targets))]


def reach(own: str, host: str, port: int, mtu: int | None, limits: Defaults = DEFAULTS) -> Reached:
    """`mtu`: the packet that should get through in one piece, headers included; None: none is tried."""
    error, rtt_s = _connect(own, host, port, limits)
    small = _passes(own, host, port, 64, limits)
    largest = None
    if small and mtu is not None:
        tried = (mtu, _USUAL) if mtu > _USUAL else (mtu,)
        largest = next((size for size in tried if _passes(own, host, port, size, limits)), None)
    return Reached(host, error, rtt_s, udp=small, mtu=largest, neighbour=neighbours().get(host))


def _connect(own: str, host: str, port: int, limits: Defaults) -> tuple[str | None, float | None]:
    """Why there is no connection, else the shortest round trip."""
    try:
        with socket.create_connection((host, port), limits.fabric_connect_s, (own, 0)) as peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            trips = []
            for _ in range(limits.fabric_exchanges):
                begin = time.perf_counter()
                peer.sendall(b"?")
                if not peer.recv(1):
                    return "the connection was closed", None
                trips.append(time.perf_counter() - begin)
            return None, min(trips)
    except TimeoutError:
        return f"no answer within {limits.fabric_connect_s:g} s", None
    except OSError as error:
        return os.strerror(error.errno).lower() if error.errno else str(error), None


def _passes(own: str, host: str, port: int, size: int, limits: Defaults) -> bool:
    """Whether a packet of `size` bytes with the DF bit is answered."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    payload = bytes(min(size - _HEADERS[family], _LARGEST))
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        asking.settimeout(limits.fabric_datagram_s)
        try:
            asking.bind((own, 0))
            asking.setsockopt(*_MTU_DISCOVER[family], _PROBE)
            asking.connect((host, port))
        except OSError:
            return False
        for _ in range(limits.fabric_datagrams):
            try:
                asking.send(payload)
                if asking.recv(16) == str(len(payload)).encode():
                    return True
            except TimeoutError:
                continue
            except OSError as error:
                if error.errno == errno.EMSGSIZE:
                    return False
    return False

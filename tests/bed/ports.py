"""Ports for servers that a test starts a moment later."""

import random
import socket
from typing import Final

_RANGE: Final = range(10_240, 29_000)
"""Below what the kernel gives to whoever asks for any port, and below sparkd's own for rendezvous: one up
there may belong to any connection of a test beside this one by the time that it is needed.
"""
_CHANCE: Final = random.SystemRandom()


def free_port() -> int:
    """A port that is free on all addresses."""
    while True:
        port = _CHANCE.choice(_RANGE)
        with socket.socket(socket.AF_INET6) as probe:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            try:
                probe.bind(("::", port))
            except OSError:
                continue
        return port

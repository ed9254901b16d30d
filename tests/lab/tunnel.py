"""A loopback port of the test that leads into a network namespace of the lab.

So a test uses the ordinary clients. The namespace is looked up for each connection: a node has a new one
after each boot.
"""

import contextlib
import ctypes
import os
import socket
import threading
from collections.abc import Callable
from typing import Final

from tests.lab.room import PATIENCE_S

CLONE_NEWNET: Final = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class Tunnel:
    """`namespace` gives the path of a network namespace; `to` is an address in it."""

    def __init__(self, namespace: Callable[[], str], to: tuple[str, int]) -> None:
        self._namespace = namespace
        self._to = to
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        for one in tuple(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._door.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with near:
            try:
                far = connect(self._namespace(), self._to)
            except (OSError, AssertionError):
                return  # the client sees its connection closed, as by a machine that refuses
            with far:
                self._open |= {near, far}
                back = threading.Thread(target=_pump, args=(far, near), daemon=True)
                back.start()
                _pump(near, far)
                back.join()
                self._open -= {near, far}


def connect(namespace: str, to: tuple[str, int]) -> socket.socket:
    """A connection made in another network namespace. This thread stays there: call it from one that ends."""
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(descriptor, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns", namespace)
    finally:
        os.close(descriptor)
    made = socket.create_connection(to, PATIENCE_S)
    made.settimeout(None)
    return made


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
        return
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)

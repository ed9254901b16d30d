"""Two rooms: network and mount namespaces that stand for two nodes, with one cable between them.

    room a ── N-a 10.97.N.1 ══ 10.97.N.2 N-b ── room b

Each has a /dev/shm and a sysfs of its own, and the processes and the GPU of the machine.
"""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, TypeVar

from benchmarks.gpu_lab.netlink import lay_cable, set_address, set_up

T = TypeVar("T")
_CLONE_NEWNET: Final = 0x40000000
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_HOLDER: Final = Path(__file__).parent / "holder.py"


@dataclass
class Room:
    name: str
    interface: str
    address: str
    holder: "subprocess.Popen[bytes]"
    started: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        out: IO[bytes] | int = subprocess.DEVNULL,
        err: IO[bytes] | int = subprocess.STDOUT,
    ) -> "subprocess.Popen[bytes]":
        """In the room, in a session of its own; the pid is that of the program itself."""
        entered = ["nsenter", "--target", str(self.holder.pid), "--net", "--mount", *argv]
        made = subprocess.Popen(
            entered,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        self.started.append(made)
        return made

    def within(self, act: Callable[[], T]) -> T:
        """What `act` gives in this room's network. A socket stays where it was made."""
        given: list[T] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                fd = os.open(f"/proc/{self.holder.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    if _LIBC.setns(fd, _CLONE_NEWNET):
                        raise OSError(ctypes.get_errno(), f"no way into {self.name}")
                finally:
                    os.close(fd)
                given.append(act())
            except BaseException as error:  # noqa: BLE001 - it is raised again by who asked
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        return given[0]

    def connect(self, port: int, timeout: float, address: str | None = None) -> socket.socket:
        return self.within(lambda: socket.create_connection((address or self.address, port), timeout))

    def link(self, *, up: bool) -> None:
        self.within(lambda: set_up(self.interface, up=up))

    def shared_memory(self) -> list[str]:
        """Names in its /dev/shm."""
        return sorted(path.name for path in Path(f"/proc/{self.holder.pid}/root/dev/shm").iterdir())


@contextmanager
def two_rooms(number: int, scratch: Path) -> Iterator[tuple[Room, Room]]:
    """Needs root. At the end everything that was started in them by `start` is killed."""
    rooms: list[Room] = []
    try:
        for at, letter in enumerate("ab"):
            name = f"{number}-{letter}"
            argv = ["unshare", "--net", "--mount", sys.executable, "-I", str(_HOLDER)]
            holder = subprocess.Popen(
                [*argv, str(scratch / name)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            rooms.append(Room(name, f"lab{name}", f"10.97.{number}.{at + 1}", holder))
            if holder.stdout is None or holder.stdout.readline() != b"ready\n":
                raise RuntimeError(f"room {name} cannot be made")
        one, other = rooms
        lay_cable((one.interface, one.holder.pid), (other.interface, other.holder.pid))
        for room in rooms:
            room.within(lambda room=room: _prepare(room))  # type: ignore[misc]
        yield one, other
    finally:
        for room in rooms:
            for process in room.started:
                end(process, 5.0)
            room.holder.kill()
            room.holder.wait()


def _prepare(room: Room) -> None:
    set_up("lo", up=True)
    set_address(room.interface, room.address)
    set_up(room.interface, up=True)


def end(process: "subprocess.Popen[bytes]", patience_s: float) -> None:
    """SIGTERM, then SIGKILL to its whole session."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Relay:
    """From a room's loopback to ours: where agents send their token without TLS, and nowhere else."""

    def __init__(self, room: Room, port: int) -> None:
        self._port = port
        self._listener: socket.socket = room.within(lambda: socket.create_server(("127.0.0.1", port)))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            try:
                there = socket.create_connection(("127.0.0.1", self._port), 5.0)
            except OSError:
                here.close()
                continue
            there.settimeout(None)
            for one, other in ((here, there), (there, here)):
                threading.Thread(target=_carry, args=(one, other), daemon=True).start()

    def close(self) -> None:
        self._listener.close()


def _carry(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(1 << 16):
            other.sendall(data)
    for end_ in (one, other):
        with contextlib.suppress(OSError):
            end_.shutdown(socket.SHUT_RDWR)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port

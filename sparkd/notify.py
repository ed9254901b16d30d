"""Both daemons tell systemd how they are: ready, a line for `systemctl status`, the beat of its watchdog.

    READY=1       once, when the daemon serves its purpose; it never waits for another machine
    STATUS=…      when it has changed
    WATCHDOG=1    three times in the interval that the unit sets, from the daemon's own loop: a loop that
                  stands still, or whose work does, is silent, and systemd starts the daemon anew
    STOPPING=1    at the end

Without `NOTIFY_SOCKET` in the environment nothing is sent and nothing runs.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Mapping

STATUS_S = 5.0
"""How often the line is looked at where no watchdog waits."""


class Notifier:
    """Never waits and never raises: no daemon stands still because systemd is slow, or gone."""

    def __init__(self, environment: Mapping[str, str], pid: int | None = None) -> None:
        self._socket: socket.socket | None = None
        self._address = environment.get("NOTIFY_SOCKET", "")
        self.watchdog_s: float | None = None
        self._status = ""
        if not self._address.startswith(("/", "@")):
            return
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        # A child that inherits the variables is not the one that is waited for.
        ours = environment.get("WATCHDOG_PID", "") in {"", str(os.getpid() if pid is None else pid)}
        microseconds = environment.get("WATCHDOG_USEC", "")
        if ours and microseconds.isdigit() and int(microseconds) > 0:
            self.watchdog_s = int(microseconds) / 1e6

    def ready(self, status: str) -> None:
        self._status = status
        self._send(f"READY=1\nSTATUS={status}")

    def stopping(self) -> None:
        self._send("STOPPING=1\nSTATUS=ends; ranks go on")

    async def keep(self, *, well: Callable[[], bool], status: Callable[[], str]) -> None:
        """Until cancelled: beat while `well` says so, and keep the status line true."""
        if self._socket is None:
            return
        while True:
            words = ["WATCHDOG=1"] if self.watchdog_s is not None and well() else []
            if (line := status()) != self._status:
                self._status = line
                words.append(f"STATUS={line}")
            self._send("\n".join(words))
            await asyncio.sleep(STATUS_S if self.watchdog_s is None else self.watchdog_s / 3)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, text: str) -> None:
        if self._socket is None or not text:
            return
        # The first character of an abstract socket's name is a zero byte.
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError):
            self._socket.sendto(text.encode(), address)

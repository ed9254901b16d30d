"""A transport that lets head and body of an answer leave in one write.

uvicorn writes them one after the other, so whoever waits wakes twice: an idle agent, which does nothing but
beat, a third more often than it must, and the coordinator makes twice the system calls for each beat.
"""

import asyncio
from typing import Any


class Gathering(asyncio.Transport):
    """What is written within one turn of the loop leaves together, at its end."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._waiting: list[bytes | bytearray | memoryview] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(data)

    def _flush(self) -> None:
        if self._waiting:
            data, self._waiting = b"".join(self._waiting), []
            self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

"""One look at the node's memory. What cannot be read is None, never 0."""

import os
import re
from pathlib import Path
from typing import Final

from sparkd.records.memory import Memory, Pressure
from sparkd.records.report import Sample

_FILE_BYTES: Final = 16 * 1024
"""More than either file has; the kernel writes it anew for each read from its beginning."""
_MEMINFO: Final = re.compile(rb"^(MemTotal|MemAvailable|MemFree): +(\d+) kB$", re.MULTILINE)
_AVG10: Final = re.compile(rb"^(some|full) avg10=([0-9.]+)", re.MULTILINE)


class Sampler:
    """Looks once a second, for ever: its files stay open, because opening costs more than reading."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._meminfo = _open(proc / "meminfo")
        self._pressure = _open(proc / "pressure" / "memory")

    def take(self) -> Sample:
        return Sample(parse_memory(_read(self._meminfo)), parse_pressure(_read(self._pressure)))

    def close(self) -> None:
        for descriptor in (self._meminfo, self._pressure):
            if descriptor is not None:
                os.close(descriptor)


def parse_memory(meminfo: bytes) -> Memory | None:
    """Bytes; the file counts in KiB."""
    found = {name: int(kib) * 1024 for name, kib in _MEMINFO.findall(meminfo)}
    if len(found) < 3:
        return None
    return Memory(found[b"MemTotal"], found[b"MemAvailable"], found[b"MemFree"])


def parse_pressure(pressure: bytes) -> Pressure:
    """The kernel's own ten-second averages, per cent."""
    found = {kind: float(percent) for kind, percent in _AVG10.findall(pressure)}
    return Pressure(found.get(b"some"), found.get(b"full"))


def _open(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _read(descriptor: int | None) -> bytes:
    if descriptor is None:
        return b""
    try:
        return os.pread(descriptor, _FILE_BYTES, 0)
    except OSError:  # a kernel without pressure accounting opens the file and refuses to read it
        return b""

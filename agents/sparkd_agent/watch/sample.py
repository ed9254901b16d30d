"""One look at the node's memory. What cannot be read is None, never 0."""

from pathlib import Path

from sparkd.records.memory import Memory, Pressure
from sparkd.records.report import Sample


def take_sample(proc: Path = Path("/proc")) -> Sample:
    return Sample(memory=read_memory(proc), pressure=read_pressure(proc))


def read_memory(proc: Path) -> Memory | None:
    """Bytes, from `meminfo` (which counts in KiB)."""
    try:
        text = (proc / "meminfo").read_text()
    except OSError:
        return None
    values = {}
    for line in text.splitlines():
        key, _, rest = line.partition(":")
        if key in ("MemTotal", "MemAvailable", "MemFree"):
            values[key] = int(rest.split()[0]) * 1024
    if len(values) < 3:
        return None
    return Memory(values["MemTotal"], values["MemAvailable"], values["MemFree"])


def read_pressure(proc: Path) -> Pressure:
    """The kernel's own ten-second averages, per cent."""
    try:
        text = (proc / "pressure" / "memory").read_text()
    except OSError:
        return Pressure()
    found: dict[str, float] = {}
    for line in text.splitlines():
        kind, *fields = line.split()
        for item in fields:
            key, _, value = item.partition("=")
            if key == "avg10":
                found[kind] = float(value)
    return Pressure(found.get("some"), found.get("full"))

"""What a process's resident memory consists of, as /proc/PID/smaps tells it."""

import re
from dataclasses import dataclass
from pathlib import Path

_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+ *(.*)$")
_COUNTED = {"Rss", "Locked", "Anonymous"}


@dataclass(frozen=True)
class Resident:
    """Bytes. `locked` counts pages that others map too by their share only (`Locked` is a PSS)."""

    total: int
    locked: int
    own: int
    """Anonymous: its heap, its stacks, what it has written of libraries' data."""
    parts: tuple[tuple[str, int], ...]
    """(file name, or what the kernel calls it; resident), the largest first."""

    def __str__(self) -> str:
        largest = ", ".join(f"{name} {mib(bytes_)}" for name, bytes_ in self.parts[:8])
        return f"{mib(self.total)} MiB, its own {mib(self.own)}, locked {mib(self.locked)}: {largest}"


def resident(pid: int) -> Resident:
    sums = dict.fromkeys(_COUNTED, 0)
    parts: dict[str, int] = {}
    name = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        mapping = _MAPPING.match(line)
        if mapping is not None:
            name = mapping[1].rpartition("/")[2] or "anonymous"
            continue
        key, _, value = line.partition(":")
        if key in _COUNTED:
            bytes_ = int(value.split()[0]) * 1024
            sums[key] += bytes_
            if key == "Rss":
                parts[name] = parts.get(name, 0) + bytes_
    largest = sorted(parts.items(), key=lambda part: -part[1])
    return Resident(sums["Rss"], sums["Locked"], sums["Anonymous"], tuple(largest))


def mib(bytes_: int) -> str:
    return f"{bytes_ / (1 << 20):.1f}"

"""The node's own black box: looks of its last minutes with a rank, on its disk, so that a boot finds what the
one before it saw last.

Written only while a rank exists, in a thread: nothing on the kill path waits for a disk. A mark says that the
last rank is gone or the agent was stopped; without it, and under another boot id, the machine's last end was
none in good order.
"""

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from sparkd.records.defaults import DEFAULTS, GIB, Defaults
from sparkd.records.report import Sample
from sparkd.records.verdict import Severity, Verdict

_CLEAN: Final = ".clean"
_SEGMENT: Final = ".jsonl"
_LAST_LOOKS: Final = 60
_LINE_CHARACTERS: Final = 500


@dataclass(frozen=True, slots=True)
class Seen:
    """One look while `rank` existed. `at` is the node's wall clock."""

    at: float
    rank: str
    sample: Sample
    kernel: tuple[str, ...] = ()


class Ring:
    """`before` is how the boot before this one ended, None if that was in good order."""

    def __init__(self, folder: Path, boot: str, limits: Defaults = DEFAULTS) -> None:
        """What cannot be read or written is left out: a full disk keeps no agent from starting."""
        self._folder = folder
        self._boot = boot
        self._limits = limits
        self.before: Verdict | None = None
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._mark().unlink(missing_ok=True)
            self.before = self._left_behind()

    def keep(self, seen: Iterable[Seen]) -> None:
        """Append, through to the disk. Blocks: for a thread. What a disk does not take is dropped."""
        lines = [msgspec.json.encode(_record(one)) for one in seen]
        with contextlib.suppress(OSError):
            self._mark().unlink(missing_ok=True)
            segments = self._segments(self._boot)
            newest = segments[-1] if segments else self._segment(0)
            if newest.exists() and newest.stat().st_size >= self._limits.ring_segment_bytes:
                newest = self._segment(int(newest.stem.rpartition("-")[2]) + 1)
            with newest.open("ab") as file:
                file.writelines(line + b"\n" for line in lines)
                file.flush()
                os.fdatasync(file.fileno())
            for old in self._segments(self._boot)[: -self._limits.ring_segments]:
                old.unlink()

    def ended_well(self) -> None:
        """No rank is left, or the agent stops in good order: what comes now is no freeze under a rank."""
        with contextlib.suppress(OSError):
            self._mark().touch()

    def records(self) -> list[dict[str, Any]]:
        """The last looks of the boot before this one, oldest first. Raises OSError."""
        old = self._old_boots()
        return _records(self._last_text(old[-1]))[-self._limits.ring_told :] if old else []

    def _left_behind(self) -> Verdict | None:
        """The end of the last boot with a rank, unless one after it ended well: then it is told already."""
        old = self._old_boots()
        marks = {path.stem: path.stat().st_mtime for path in self._folder.glob(f"*{_CLEAN}")}
        ended = max(marks.values(), default=float("-inf"))
        last_look = self._segments(old[-1])[-1].stat().st_mtime if old else 0.0
        is_told = bool(old) and (old[-1] in marks or ended >= last_look)
        for boot in {*old[: None if is_told else -1], *marks}:
            self._forget(boot)
        return None if is_told or not old else unclean_end(self._last_text(old[-1]))

    def _old_boots(self) -> list[str]:
        return sorted(
            {path.stem.rpartition("-")[0] for path in self._folder.glob(f"*{_SEGMENT}")} - {self._boot},
            key=lambda boot: self._segments(boot)[-1].stat().st_mtime,
        )

    def _last_text(self, boot: str) -> str:
        return self._segments(boot)[-1].read_text(encoding="utf-8", errors="replace")

    def _forget(self, boot: str) -> None:
        for path in (*self._segments(boot), self._mark(boot)):
            path.unlink(missing_ok=True)

    def _segments(self, boot: str) -> list[Path]:
        found = self._folder.glob(f"{boot}-*{_SEGMENT}")
        return sorted(found, key=lambda path: int(path.stem.rpartition("-")[2]))

    def _segment(self, number: int) -> Path:
        return self._folder / f"{self._boot}-{number}{_SEGMENT}"

    def _mark(self, boot: str | None = None) -> Path:
        return self._folder / f"{boot or self._boot}{_CLEAN}"


def _records(text: str) -> list[dict[str, Any]]:
    """Of a segment. Its very last line may be torn."""
    found = []
    for line in text.splitlines():
        with contextlib.suppress(msgspec.DecodeError):
            found.append(msgspec.json.decode(line))
    return found


def unclean_end(text: str) -> Verdict | None:
    """What the last looks say of an end that nobody announced; None without any."""
    records = _records(text)
    if not records:
        return None
    last = records[-1]
    kernel = [line for record in records[-_LAST_LOOKS:] for line in record["kernel"]]
    told = [f"the last look was at {last['at']:.0f} (seconds since 1970)"]
    if last["available"] is not None:
        told.append(f"MemAvailable {last['available'] / GIB:.1f} GiB")
    told += [*last["verdicts"], *kernel[-3:]]
    return Verdict(
        "UNCLEAN_END",
        Severity.WARN,
        f"this node's last boot ended without a shutdown while {last['rank']} was there",
        evidence="; ".join(told),
    )


def _record(seen: Seen) -> dict[str, Any]:
    memory = seen.sample.memory
    return {
        "at": round(seen.at, 3),
        "rank": seen.rank,
        "available": memory.available if memory is not None else None,
        "free": memory.free if memory is not None else None,
        "full10": seen.sample.pressure.full10,
        "gpu": seen.sample.gpu,
        "verdicts": [verdict.id for verdict in seen.sample.verdicts],
        "kernel": [line[:_LINE_CHARACTERS] for line in seen.kernel],
    }

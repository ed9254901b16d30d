"""The processes whose end is the end of their rank: a pidfd on each, and how each of them ended.

Which ones there are is noted in a file: the next run of the agent must miss one that ended in between.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from sparkd.clock import Clock, Instant
from sparkd.errors import StateCorrupt
from sparkd.records.report import Exit
from sparkd_agent import exits
from sparkd_agent.logs import RankLog
from sparkd_agent.procfs import ProcessRef, ProcFs
from sparkd_agent.rankfolder import ExitRecord, RankFolder

LEADER: Final = exits.LEADER
SHIM: Final = "shim"
LOG_LINES: Final = 400
"""How far back the log is searched for what it says of an end."""


@dataclass(slots=True)
class Essential:
    title: str
    ref: ProcessRef
    pidfd: int
    """-1 when it had ended before it could be watched."""
    ended_at: Instant | None = None
    exit: Exit | None = None

    @property
    def ended(self) -> bool:
        return self.ended_at is not None


class Essentials:
    def __init__(
        self,
        folder: RankFolder,
        *,
        procfs: ProcFs,
        clock: Clock,
        on_end: Callable[[Essential], None],
    ) -> None:
        self._folder = folder
        self._procfs = procfs
        self._clock = clock
        self._on_end = on_end
        self._all: dict[ProcessRef, Essential] = {}

    def hold(self, title: str, ref: ProcessRef) -> Essential | None:
        """Watch this very process, under its newest title; None if it has ended already."""
        if (known := self._all.get(ref)) is not None:
            if known.title not in {LEADER, SHIM, title}:
                known.title = title  # `VLLM::Worker` becomes `VLLM::Worker_TP0` once its groups exist
                self._note()
            return known
        try:
            pidfd = os.pidfd_open(ref.pid)
        except OSError:
            return None
        if not self._procfs.alive(ref):
            os.close(pidfd)
            return None
        one = self._all[ref] = Essential(title, ref, pidfd)
        asyncio.get_running_loop().add_reader(pidfd, self.end, one)
        self._note()
        return one

    def missed(self, title: str, ref: ProcessRef) -> Essential:
        """Record a process that ended while no agent watched: before its leader, or just now."""
        record = self.exit_record()
        at = self._clock.now() if record is None else Instant(record.mono, record.wall)
        one = self._all[ref] = Essential(title, ref, -1, ended_at=at)
        if title != LEADER:
            one.exit = self._from_log(exits.Ended(title, ref.pid, at))
        return one

    def hold_noted(self) -> list[Essential]:
        """Watch what an earlier run of the agent watched; gives those that ended meanwhile."""
        return [
            self.missed(noted.title, noted.ref)
            for noted in self._noted()
            if self.hold(noted.title, noted.ref) is None
        ]

    def end(self, one: Essential) -> None:
        if one.pidfd >= 0:
            asyncio.get_running_loop().remove_reader(one.pidfd)
        if one.ended:
            return
        if (cause := self._ended_before(one)) is not None:
            self.end(cause)  # the loop only heard of it later
        # Whatever else has ended by now has the same moment: which of them was first is not known.
        at = self._clock.now()
        for other in (one, *self._ended_unheard(one)):
            other.ended_at = at
            self._on_end(other)

    def end_all(self) -> None:
        """All of them are proved gone, whether or not the loop has heard of it."""
        for one in tuple(self._all.values()):
            self.end(one)

    @property
    def leader(self) -> Essential | None:
        return self._titled(LEADER)

    def _titled(self, title: str) -> Essential | None:
        return next((one for one in self._all.values() if one.title == title), None)

    def _ended_before(self, one: Essential) -> Essential | None:
        """Leader and shim bring each other down: the shim goes after its leader, and systemd ends a leader
        whose shim was killed. A shim that outlived its leader has written down how that ended.
        """
        other = self._titled({SHIM: LEADER, LEADER: SHIM}.get(one.title, ""))
        if other is None or other.ended or self._procfs.alive(other.ref):
            return None
        was_leader_first = self.exit_record() is not None
        return other if was_leader_first == (other.title == LEADER) else None

    def _ended_unheard(self, one: Essential) -> list[Essential]:
        """Leader and shim have an order of their own."""
        others = [other for other in self._all.values() if other is not one and not other.ended]
        return [o for o in others if o.title not in {LEADER, SHIM} and not self._procfs.alive(o.ref)]

    @property
    def living(self) -> list[int]:
        """Pidfds of what the kill path may signal: the shim is left out."""
        return [one.pidfd for one in self._all.values() if not one.ended and one.title != SHIM]

    def living_titles(self) -> tuple[tuple[str, int], ...]:
        return tuple((one.title, one.ref.pid) for one in self._all.values() if not one.ended)

    def is_unreaped(self, one: Essential) -> bool:
        """Whether it has ended and its parent has not taken note of that yet."""
        stat = self._procfs.stat(one.ref.pid)
        return one.pidfd >= 0 and stat is not None and stat.ref == one.ref and stat.ended

    def settle(self, one: Essential, *, shim_alive: bool, final: bool) -> None:
        """Try to learn how it ended; `final`: what is unknown now stays unknown."""
        if one.exit is None and one.ended_at is not None:
            one.exit = self._learn(one, one.ended_at, shim_alive=shim_alive, final=final)

    def exit_record(self) -> ExitRecord | None:
        """What the shim wrote of the leader's end; None also for a record that cannot be read."""
        try:
            return self._folder.exit_record()
        except StateCorrupt:
            return None

    def close(self) -> None:
        loop = asyncio.get_running_loop()
        for one in self._all.values():
            if one.pidfd >= 0:
                loop.remove_reader(one.pidfd)
                os.close(one.pidfd)
                one.pidfd = -1

    def _learn(self, one: Essential, at: Instant, *, shim_alive: bool, final: bool) -> Exit | None:
        rank = self._folder.name
        if one.title == LEADER:
            record = self.exit_record()
            if record is not None:
                return exits.from_shim(rank, record)
            if shim_alive and not final:
                return None
        ended = exits.Ended(one.title, one.ref.pid, at)
        found = exits.from_pidfd(rank, ended, one.pidfd) if one.pidfd >= 0 else None
        if found is not None or not final:
            return found
        return self._from_log(ended) or exits.unknown(rank, ended)

    def _from_log(self, ended: exits.Ended) -> Exit | None:
        return exits.from_log(self._folder.name, ended, RankLog(self._folder.log).last(LOG_LINES))

    def _noted(self) -> list["_Noted"]:
        try:
            return msgspec.json.decode(self._folder.essentials.read_bytes(), type=list[_Noted])
        except (OSError, msgspec.MsgspecError):
            return []

    def _note(self) -> None:
        """Without fsync: a power loss leaves nothing to adopt. A full disk costs the next agent the notes."""
        noted = [_Noted(one.title, one.ref) for one in self._all.values() if one.title not in {LEADER, SHIM}]
        temporary = self._folder.essentials.with_suffix(".tmp")
        with contextlib.suppress(OSError):
            temporary.write_bytes(msgspec.json.encode(noted))
            temporary.replace(self._folder.essentials)


@dataclass(frozen=True, slots=True)
class _Noted:
    title: str
    ref: ProcessRef

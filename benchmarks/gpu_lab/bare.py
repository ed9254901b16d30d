"""The same two ranks without sparkd, as a person would type them on each node."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gpu_lab.rooms import Room
from benchmarks.gpu_lab.seen import health, of_sessions, until
from benchmarks.gpu_lab.setting import Setting
from tests.bed.local_set import Process

_API, _RENDEZVOUS = 8000, 29_500


@dataclass
class Pair:
    rooms: tuple[Room, Room]
    port: int = _API
    leaders: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    def processes(self, rank: int | None = None) -> list[Process]:
        chosen = self.leaders if rank is None else [self.leaders[rank]]
        return of_sessions(one.pid for one in chosen)

    def process(self, rank: int, title: str) -> Process:
        return next(one for one in self.processes(rank) if one.title.startswith(title))

    def serving(self, patience_s: float) -> None:
        def look() -> bool:
            for rank, leader in enumerate(self.leaders):
                if leader.poll() is not None:
                    raise RuntimeError(f"rank {rank} ended with {leader.returncode} before it served")
            return health(self.rooms[0], self.port) == "200"

        until(look, "/health to be 200", patience_s, 0.25)

    def ends(self) -> str:
        """How the launchers stand."""
        told = (f"rank {rank} {_end_of(leader)}" for rank, leader in enumerate(self.leaders))
        return ", ".join(told)

    def kill(self) -> None:
        for one in self.processes():
            with suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)
        for leader in self.leaders:
            leader.wait()


def _end_of(leader: "subprocess.Popen[bytes]") -> str:
    code = leader.poll()
    return "lives" if code is None else f"exited {code}"


@contextmanager
def bare_pair(
    folder: Path, rooms: tuple[Room, Room], setting: Setting, env: Mapping[str, str]
) -> Iterator[Pair]:
    folder.mkdir(parents=True, exist_ok=True)
    pair = Pair(rooms)
    try:
        for rank, room in enumerate(rooms):
            argv = setting.bare_argv(rank, rooms[0].address, _API, _RENDEZVOUS)
            full = {**setting.bare_env(room.name, room.address, room.interface), **env}
            with (folder / f"rank{rank}.log").open("wb") as log:
                pair.leaders.append(room.start(argv, full, log, log))
        yield pair
    finally:
        pair.kill()

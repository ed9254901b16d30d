"""The record of a local set on disk. Apart from `local.py`, since every command looks for a live set."""

from dataclasses import dataclass

import msgspec

from sparkd.daemon import Daemon, is_alive
from sparkd.paths import Paths
from sparkd.records.status import Status


@dataclass(frozen=True, slots=True)
class LocalSet:
    """What `coordinator.json` says: where the set listens and which processes it is made of."""

    url: str
    agents_url: str
    n: int
    pid: int = 0
    start_time: int = 0
    boot: str = ""
    agents: tuple[Daemon, ...] = ()

    @property
    def coordinator(self) -> Daemon:
        return Daemon(self.pid, self.start_time, self.boot)

    @property
    def daemons(self) -> tuple[Daemon, ...]:
        return (self.coordinator, *self.agents)


def read_local_set(paths: Paths) -> LocalSet | None:
    """The set as last started, alive or not; None when there is none or `down` ended it."""
    try:
        return msgspec.json.decode((paths.local / "coordinator.json").read_bytes(), type=LocalSet)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def live_local_set(paths: Paths) -> LocalSet | None:
    """The set, if its coordinator runs."""
    found = read_local_set(paths)
    return found if found and is_alive(found.coordinator) else None


def last_status(paths: Paths) -> Status | None:
    """What the coordinator knew when `down` ended the set; None while one exists."""
    try:
        return msgspec.json.decode((paths.local / "last.json").read_bytes(), type=Status)
    except (FileNotFoundError, msgspec.DecodeError):
        return None

"""The folder of one rank: what its shim wrote there, for this agent and for later ones.

The format is the shim's (see `shim/`) and versioned: this module reads every format up to its own.
"""

import contextlib
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from sparkd.clock import Instant
from sparkd.errors import Spent, StateCorrupt, StateTooNew
from sparkd_agent.procfs import ProcessRef
from sparkd_agent.runtime.base import RankHandle

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class ShimRecord:
    """`shim.json`."""

    format: int
    name: str
    boot: str
    shim: ProcessRef
    leader: ProcessRef
    mono: float
    wall: float
    pipes: tuple[int, ...] = ()
    cgroup: str | None = None


@dataclass(frozen=True, slots=True)
class ExitRecord:
    """`exit.json`. `error` is set when the leader could not be executed at all."""

    format: int
    name: str
    pid: int
    code: int | None
    signal: int | None
    mono: float
    wall: float
    error: str | None = None
    lost_bytes: int = 0


class RankFolder:
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def log(self) -> Path:
        return self.path / "log"

    @property
    def shm_names(self) -> Path:
        return self.path / "shm.json"

    @property
    def essentials(self) -> Path:
        return self.path / "essentials.json"

    @property
    def unit(self) -> Path:
        """There from before systemd was asked for a unit."""
        return self.path / "unit"

    @property
    def container(self) -> Path:
        """There from before a Docker engine was asked for a container."""
        return self.path / "container"

    def create(self) -> None:
        """The very first act of a start. Raises Spent if the folder was ever made, OSError otherwise."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self.path.mkdir(mode=0o700)
        except FileExistsError:
            raise Spent(f"{self.name} was started before: {self.path} exists") from None

    def keep_key(self, key: str) -> None:
        """Keep the API key for later runs of the agent: before the rank exists, or a crash would lose it.

        Raises OSError.
        """
        descriptor = os.open(self._key, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(key)

    def key(self) -> str | None:
        return self._key.read_text().strip() if self._key.exists() else None

    @property
    def _key(self) -> Path:
        return self.path / "api.key"

    def lock(self) -> int:
        """Take the folder's lock. The descriptor goes to the shim, so the lock lives as long as it does.

        Raises BlockingIOError while another shim holds it.
        """
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return fd

    def locked(self) -> bool:
        """Whether a shim lives, or is coming up and has written nothing yet."""
        try:
            os.close(self.lock())
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def remove(self) -> None:
        """Remove everything in it and itself; what cannot be removed stays."""
        with contextlib.suppress(OSError):
            for place, folders, files in os.walk(self.path, topdown=False):
                for name in files:
                    Path(place, name).unlink()
                for name in folders:
                    Path(place, name).rmdir()
            self.path.rmdir()

    def handle(self) -> RankHandle:
        """The rank as recorded.

        Raises StateCorrupt for a record that cannot be read, StateTooNew for one of a later format.
        """
        body = _read(self.path / "shim.json")
        if body is None:
            made = self.path.stat().st_mtime
            return RankHandle(self.name, str(self.path), boot="", started=Instant(0.0, made))
        record = _decode(body, ShimRecord, self.path / "shim.json")
        return RankHandle(
            name=record.name,
            folder=str(self.path),
            boot=record.boot,
            started=Instant(record.mono, record.wall),
            shim=record.shim,
            leader=record.leader,
            pipes=record.pipes,
            cgroup=record.cgroup,
        )

    def exit_record(self) -> ExitRecord | None:
        """How the leader ended; None while that is not recorded. Raises as `handle`."""
        body = _read(self.path / "exit.json")
        return None if body is None else _decode(body, ExitRecord, self.path / "exit.json")


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


class _Head(msgspec.Struct):
    format: int


Record = TypeVar("Record", ShimRecord, ExitRecord)


def _decode(body: bytes, kind: type[Record], path: Path) -> Record:
    try:
        found = msgspec.json.decode(body, type=_Head).format
        if found > FORMAT:
            raise StateTooNew(
                f"{path} has format {found}, this agent reads up to {FORMAT}: install a newer agent"
            )
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise StateCorrupt(f"{path} cannot be read: {error}") from error

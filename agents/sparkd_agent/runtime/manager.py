"""What the `systemd` runtime asks of systemd, and two ways to ask: its bus, and its own programs.

All calls block, for 10 ms as a rule; they belong into a thread. None is made to end a rank: see `kill.py`.
"""

import os
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from jeepney import DBusAddress, HeaderFields, MessageType, Properties, new_method_call
from jeepney.io.blocking import DBusConnection, open_dbus_connection

from sparkd.errors import RankNotStarted, ServiceManagerUnreachable, Spent
from sparkd.records.names import parse_rank_name
from sparkd_agent.procfs import FOLDER_VARIABLE
from sparkd_agent.runtime.base import DEFAULT_PATH
from sparkd_agent.runtime.unit import RANKS_GROUP, RankUnit, Stdio, bus_properties, run_words, unit_name

_NAME: Final = "org.freedesktop.systemd1"
_MANAGER: Final = DBusAddress("/org/freedesktop/systemd1", bus_name=_NAME, interface=f"{_NAME}.Manager")
_ALL_RANKS: Final = "sparkd-*-g*-r*.service"


@dataclass(frozen=True, slots=True)
class UnitState:
    """A unit that bears the name of a rank."""

    rank: str
    active: str
    """systemd's word: `active` (also after the shim has exited), `activating`, `failed`, …"""
    main_pid: int
    """0 when none runs."""
    control_group: str
    """Where it is or will be: a unit that waits for its turn has none yet."""
    folder: str | None
    """The rank's folder, by which an agent knows its own."""
    result: str = ""
    """How the shim ended by systemd's account, `exit-code, status 203`; empty while all is well."""
    queued: bool = False
    """A job waits for its turn: what was asked for a moment ago is still `inactive`."""

    @property
    def may_run(self) -> bool:
        return self.queued or self.active in {"activating", "active", "reloading", "deactivating"}


class Manager(Protocol):
    """Every method raises ServiceManagerUnreachable when systemd was certainly not asked."""

    def start(self, unit: RankUnit, stdio: Stdio) -> None:
        """Ask for the unit. No answer in time is no error: the shim's own answer decides.

        Raises Spent when a unit of that name is there, RankNotStarted when systemd refuses.
        """
        ...

    def units(self) -> list[UnitState]:
        """All units of ranks, running, ended or failed."""
        ...

    def tidy(self, rank: str) -> None:
        """Let the unit of an ended rank go, exited or failed. Idempotent."""
        ...


class SystemBus:
    """A connection for each question: one that stays open would be one more thing that can break."""

    def __init__(self, patience_s: float, address: str = "SYSTEM") -> None:
        self._patience_s = patience_s
        self._address = address

    def start(self, unit: RankUnit, stdio: Stdio) -> None:
        arguments: tuple[Any, ...] = (unit_name(unit.name), "fail", bus_properties(unit, stdio), [])
        with self._connect() as bus:
            try:
                self._call(bus, "StartTransientUnit", "ssa(sv)a(sa(sv))", arguments)
            except TimeoutError:
                return
            except _Refused as error:
                if error.name == f"{_NAME}.UnitExists":
                    raise Spent(f"{unit.name} was started before: {error}") from error
                raise RankNotStarted(f"{unit.name}: systemd refused it: {error}") from error

    def units(self) -> list[UnitState]:
        with self._connect() as bus:
            try:
                (found,) = self._call(bus, "ListUnitsByPatterns", "asas", ([], [_ALL_RANKS]))
                return [self._state(bus, row) for row in found if _rank_of(row[0])]
            except (TimeoutError, _Refused) as error:
                raise ServiceManagerUnreachable(f"systemd does not list its units: {error}") from error

    def tidy(self, rank: str) -> None:
        with self._connect() as bus:
            for method, signature, arguments in (
                ("StopUnit", "ss", (unit_name(rank), "replace")),
                ("ResetFailedUnit", "s", (unit_name(rank),)),
            ):
                try:
                    self._call(bus, method, signature, arguments)
                except _Refused as error:
                    if error.name != f"{_NAME}.NoSuchUnit":
                        raise ServiceManagerUnreachable(f"{method} of {rank}: {error}") from error
                except TimeoutError as error:
                    raise ServiceManagerUnreachable(f"{method} of {rank}: no answer") from error

    def _state(self, bus: DBusConnection, row: Sequence[Any]) -> UnitState:
        address = DBusAddress(row[6], bus_name=_NAME, interface=f"{_NAME}.Service")
        reply = bus.send_and_get_reply(Properties(address).get_all(), timeout=self._patience_s)
        # A unit can go between two questions.
        said = (
            {name: value for name, (_, value) in reply.body[0].items()}
            if reply.header.message_type is MessageType.method_return
            else {}
        )
        return UnitState(
            rank=_rank_of(row[0]),
            active=row[3],
            main_pid=said.get("MainPID", 0),
            control_group=said.get("ControlGroup") or f"{RANKS_GROUP}/{row[0]}",
            folder=_folder_in(said.get("Environment", ())),
            result=_result(said.get("Result", "success"), said.get("ExecMainStatus", 0)),
            queued=row[7] != 0,
        )

    def _call(self, bus: DBusConnection, method: str, signature: str, arguments: tuple[Any, ...]) -> Any:
        message = new_method_call(_MANAGER, method, signature, arguments)
        try:
            reply = bus.send_and_get_reply(message, timeout=self._patience_s)
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
            raise TimeoutError(str(error)) from error  # broken off: whether it was heard is not known
        if reply.header.message_type is MessageType.error:
            name = reply.header.fields.get(HeaderFields.error_name, "")
            raise _Refused(name, reply.body[0] if reply.body else name)
        return reply.body

    def _connect(self) -> DBusConnection:
        try:
            return open_dbus_connection(self._address, enable_fds=True, auth_timeout=self._patience_s)
        except (OSError, ValueError, KeyError) as error:
            raise ServiceManagerUnreachable(f"no system bus: {error}") from error


class SystemPrograms:
    """`systemd-run` and `systemctl`, which as root need no bus."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s

    def start(self, unit: RankUnit, stdio: Stdio) -> None:
        try:
            code, said = self._run(run_words(unit, stdio, os.getpid()))
        except subprocess.TimeoutExpired:
            return
        if "already loaded" in said:
            raise Spent(f"{unit.name} was started before: {said}")
        if code != 0:
            raise RankNotStarted(f"{unit.name}: systemd-run refused it: {said}")

    def units(self) -> list[UnitState]:
        wanted = "--property=Id,ActiveState,MainPID,ControlGroup,Environment,Result,ExecMainStatus,Job"
        try:
            code, said = self._run(["systemctl", "show", "--all", wanted, _ALL_RANKS])
        except subprocess.TimeoutExpired as error:
            raise ServiceManagerUnreachable("systemctl does not answer") from error
        if code != 0:
            raise ServiceManagerUnreachable(f"systemctl: {said}")
        return [state for block in said.split("\n\n") if (state := _state_in(block)) is not None]

    def tidy(self, rank: str) -> None:
        for verb in ("stop", "reset-failed"):
            try:
                code, said = self._run(["systemctl", "--quiet", verb, unit_name(rank)])
            except subprocess.TimeoutExpired as error:
                raise ServiceManagerUnreachable(f"systemctl {verb}: no answer") from error
            if code != 0 and "not loaded" not in said:
                raise ServiceManagerUnreachable(f"systemctl {verb}: {said}")

    def _run(self, words: list[str]) -> tuple[int, str]:
        try:
            done = subprocess.run(
                words,
                env={"PATH": DEFAULT_PATH, "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._patience_s,
                check=False,
            )
        except OSError as error:
            raise ServiceManagerUnreachable(f"{words[0]} cannot be run: {error}") from error
        if "Failed to connect to bus" in done.stderr:
            raise ServiceManagerUnreachable(done.stderr.strip())
        return done.returncode, (done.stdout if done.returncode == 0 else done.stderr).strip()


class _Refused(Exception):
    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


def _rank_of(unit: str) -> str:
    """The rank that a unit is named after; empty for any other unit."""
    rank = unit.removesuffix(".service")
    return rank if parse_rank_name(rank) else ""


def _result(result: str, status: int | str) -> str:
    return "" if result == "success" else f"{result}, status {status}"


def _folder_in(environment: Sequence[str]) -> str | None:
    prefix = f"{FOLDER_VARIABLE}="
    return next((word.removeprefix(prefix) for word in environment if word.startswith(prefix)), None)


def _state_in(block: str) -> UnitState | None:
    """One unit as `systemctl show` prints it."""
    said = dict(_fields(block))
    rank = _rank_of(said.get("Id", ""))
    if not rank:
        return None
    return UnitState(
        rank=rank,
        active=said.get("ActiveState", ""),
        main_pid=int(said.get("MainPID", "0")),
        control_group=said.get("ControlGroup") or f"{RANKS_GROUP}/{said['Id']}",
        folder=_folder_in(_words(said.get("Environment", ""))),
        result=_result(said.get("Result", "success"), said.get("ExecMainStatus", "0")),
        queued=said.get("Job", "0") not in {"", "0"},
    )


def _fields(block: str) -> Iterator[tuple[str, str]]:
    for line in block.splitlines():
        name, equals, value = line.partition("=")
        if equals:
            yield name, value


def _words(text: str) -> list[str]:
    """Words as a unit file quotes them; what cannot be read is nothing."""
    try:
        return shlex.split(text)
    except ValueError:
        return []

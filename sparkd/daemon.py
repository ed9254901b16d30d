"""Background processes that outlive the command that started them, known by pid and start time."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Daemon:
    """One process for ever: a pid alone may be another's tomorrow. `start_time` in ticks since the boot."""

    pid: int
    start_time: int
    boot: str


def start_daemon(argv: Sequence[str], log: Path, cwd: Path) -> Daemon:
    """Start `argv` in a session of its own, without our descriptors, its output appended to `log`."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            cwd=cwd,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)
    # Before anything can wait for it: even a child that died at once still has a start time, as a zombie.
    started = _stat(child.pid, _PROC)
    # It stays when we go: nobody waits for it, and subprocess must not warn that nobody did.
    child.returncode = 0
    return Daemon(child.pid, started[1] if started else 0, boot_id(_PROC))


def is_alive(daemon: Daemon, proc: Path = _PROC) -> bool:
    """Whether exactly this process still runs. A zombie does not: it only waits for its parent."""
    stat = _stat(daemon.pid, proc)
    return (
        stat is not None
        and stat[0] not in "ZX"
        and stat[1] == daemon.start_time
        and daemon.boot == boot_id(proc)
    )


def end_daemons(
    daemons: Sequence[Daemon], patience_s: float, sleep: Callable[[float], None] = time.sleep
) -> list[Daemon]:
    """SIGTERM to all, SIGKILL to those alive after `patience_s`; returns those that even then stayed."""
    for sign, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, patience_s)):
        for daemon in daemons:
            _signal(daemon, sign)
        until = time.monotonic() + wait_s
        while (left := [daemon for daemon in daemons if is_alive(daemon)]) and time.monotonic() < until:
            sleep(0.05)
        if not left:
            break
    return left


def boot_id(proc: Path = _PROC) -> str:
    return (proc / "sys/kernel/random/boot_id").read_text().strip()


def _signal(daemon: Daemon, sign: signal.Signals) -> None:
    """Descriptor first, identity after: so the signal cannot hit a successor of the same pid."""
    try:
        descriptor = os.pidfd_open(daemon.pid)
    except ProcessLookupError:
        return
    try:
        if is_alive(daemon):
            signal.pidfd_send_signal(descriptor, sign)
    except ProcessLookupError:
        pass  # ended between the look and the signal
    finally:
        os.close(descriptor)


def _stat(pid: int, proc: Path) -> tuple[str, int] | None:
    """(state, start time) of a process, from the last bracket on: its name may hold spaces and brackets."""
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])

"""Where a process of the stand-in stands: its arguments, its settings, its title and its log."""

import json
import mmap
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from stand_in import segment_prefix

Message = dict[str, Any]


def read_flags(words: Iterable[str]) -> tuple[dict[str, list[str]], list[str]]:
    """vLLM's flags in the spellings that sparkd uses: `--key value`, `--key=value`, `-tp N`, bare flags."""
    flags: dict[str, list[str]] = {}
    values: list[str] = []
    short = {
        "-tp": "--tensor-parallel-size",
        "-pp": "--pipeline-parallel-size",
        "-n": "--nnodes",
        "-r": "--node-rank",
    }
    left = list(words)
    while left:
        word = left.pop(0)
        if not word.startswith("-"):
            values.append(word)
            continue
        key, equals, value = short.get(word, word).partition("=")
        taken = [value] if equals else []
        while not equals and left and not left[0].startswith("-"):
            taken.append(left.pop(0))
        flags[key.lstrip("-").replace("_", "-")] = taken
    return flags, values


def read_setting(folder: str, name: str, default: str = "", *, rank: int) -> str:
    """From `settings.json` (read anew each time), else the environment; `value@rank` filters."""
    try:
        with open(os.path.join(folder, "settings.json")) as file:
            value = json.load(file).get(name)
    except FileNotFoundError:
        value = None
    if value is None:
        value = os.environ.get("STAND_IN_" + name)
    if value is None:
        return default
    value, at, only = value.rpartition("@") if "@" in value else (value, "", "")
    return default if at and only != str(rank) else value


class Place:
    """Shared by all processes of one rank; every fork inherits it and changes its own copy."""

    def __init__(self, folder: str, words: Iterable[str]) -> None:
        self.folder = folder
        self.flags, values = read_flags(words)
        self.model = values[0] if values else "model"
        self.rank = int(self.flag("node-rank", "0"))
        self.ranks = int(self.flag("nnodes", "1"))
        self.name = "APIServer" if self.rank == 0 else "MainProcess"
        self.segment_paths: list[str] = []
        self.mapped: list[mmap.mmap] = []
        self.listener: socket.socket | None = None

    def flag(self, name: str, default: str) -> str:
        return (self.flags.get(name) or [default])[0]

    def setting(self, name: str, default: str = "") -> str:
        return read_setting(self.folder, name, default, rank=self.rank)

    def seconds(self, name: str, default: float) -> float:
        return float(self.setting(name, "") or default)

    def log(self, text: str, where: str = "stand_in.py:1", level: str = "INFO") -> None:
        stamp = time.strftime("%m-%d %H:%M:%S")
        prefix = f"({self.name} pid={os.getpid()}) {level} {stamp} [{where}] "
        write(1, "".join(f"{prefix}{line}\n" for line in text.split("\n")))

    def enter(self, phase: str) -> None:
        """Called by the launcher at the start of each phase it knows of; here `EXIT` strikes."""
        where, _, code = self.setting("EXIT").partition(":")
        if where == phase:
            self.end(int(code))

    def end(self, code: int) -> NoReturn:
        if code < 0:
            os.kill(os.getpid(), -code)
            time.sleep(5)
        os._exit(code)

    def title(self, text: str) -> None:
        """What setproctitle does: overwrite the memory of argv, and set comm."""
        self.name = text.removeprefix("VLLM::")
        with open("/proc/self/comm", "w") as comm:
            comm.write(text[:15])
        with open("/proc/self/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        memory = os.open("/proc/self/mem", os.O_WRONLY)
        os.pwrite(memory, text.encode().ljust(end - start, b"\0")[: end - start - 1] + b"\0", start)
        os.close(memory)

    def map_segment(self) -> None:
        size = int(self.setting("SHM_BYTES", "0"))
        if not size:
            return
        path = f"/dev/shm/{segment_prefix(self.folder)}{os.urandom(4).hex()}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.ftruncate(fd, size)
        self.segment_paths.append(path)
        self.mapped.append(mmap.mmap(fd, size))
        os.close(fd)

    def remove_segments(self) -> None:
        for path in self.segment_paths:
            if os.path.exists(path):
                os.unlink(path)

    def end_cleanly_on_sigterm(self) -> None:
        def end(signum: int, frame: object) -> None:
            self.remove_segments()
            os._exit(0)

        signal.signal(signal.SIGTERM, end)


def write(fd: int, text: str) -> None:
    data = text.encode()
    while data:
        data = data[os.write(fd, data) :]


def fork(body: Callable[[], object]) -> int:
    """Run `body()` in a child, which never returns; give the child's pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        body()
        os._exit(0)
    except BaseException:  # noqa: BLE001 - a child must never return into its parent's code
        import traceback

        write(2, traceback.format_exc())
        os._exit(1)


def exit_code(status: int) -> int:
    """As multiprocessing shows it: negative for a signal."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


class Lines:
    """JSON lines over a socket or socket pair."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.rest = b""

    def send(self, message: Message) -> None:
        self.sock.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> Message:
        """The next message; EOFError when the other side is gone."""
        while b"\n" not in self.rest:
            data = self.sock.recv(65536)
            if not data:
                raise EOFError
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\n")
        message: Message = json.loads(line)
        return message

    def pending(self) -> bool:
        """A whole message was read already: `select` knows nothing of it."""
        return b"\n" in self.rest

    def fileno(self) -> int:
        return self.sock.fileno()


def refuse_to_start(place: Place, text: str) -> NoReturn:
    write(2, f'Traceback (most recent call last):\n  File "stand_in.py", line 1, in <module>\n{text}\n')
    place.remove_segments()
    os._exit(1)

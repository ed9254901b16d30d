"""What is seen of ranks from outside: processes, the card's memory, the health page, a client's stream."""

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gpu_lab.rooms import Room
from sparkd.records.defaults import MIB
from sparkd_agent.procfs import ProcFs
from sparkd_agent.watch.nvml import Nvml, open_nvml
from tests.bed.local_set import Process

_PROC = ProcFs()


def of_sessions(leaders: Iterable[int]) -> list[Process]:
    """All living processes of these sessions."""
    wanted = set(leaders)
    stats = {pid: stat for pid, stat in _PROC.stats().items() if not stat.ended and stat.session in wanted}
    return [Process(pid, stats[pid].starttime, _PROC.title(pid)) for pid in sorted(stats)]


class Card:
    """The GPU as NVML shows it; without one nothing is known."""

    def __init__(self) -> None:
        found = open_nvml()
        self._nvml = found if isinstance(found, Nvml) and found.devices else None
        self.why = found if isinstance(found, str) else None

    def held(self) -> dict[int, int] | None:
        """Bytes by process id."""
        if self._nvml is None:
            return None
        look = self._nvml.looks(time.monotonic())[0]
        return None if look.processes is None else {one.pid: one.bytes or 0 for one in look.processes}

    def in_words(self) -> str:
        if self._nvml is None:
            return self.why or "no GPU"
        one = self._nvml.looks(time.monotonic())[0]
        used = (one.memory_used or 0) // MIB
        return (
            f"{one.name}: {one.utilization} %, {one.sm_mhz} MHz, {one.watts} W, {one.celsius} C, "
            f"{used} MiB used, {len(one.processes or ())} processes"
        )


@dataclass
class Gone:
    """When the last of these processes was gone, and when they held nothing of the card any more."""

    processes: list[Process]
    since: float
    card: Card
    patience_s: float
    gone: float | None = None
    card_gone: float | None = None

    def __post_init__(self) -> None:
        self._pids = {one.pid for one in self.processes}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        looked = 0.0
        while time.monotonic() < self.since + self.patience_s:
            now = time.monotonic()
            if self.gone is None and not any(one.alive for one in self.processes):
                self.gone = now - self.since
            if self.card_gone is None and now - looked > 0.05:
                looked = now
                held = self.card.held()
                if held is None or not self._pids & held.keys():
                    self.card_gone = time.monotonic() - self.since
            if self.gone is not None and self.card_gone is not None:
                return
            time.sleep(0.01)

    def wait(self) -> "Gone":
        self._thread.join()
        return self

    def left(self) -> list[Process]:
        return [one for one in self.processes if one.alive]

    def in_words(self) -> str:
        left = ", ".join(shown(one) for one in self.left())
        words = f"all gone {seconds(self.gone)}, card {seconds(self.card_gone)}"
        return f"{words}, left: {left}" if left else words


def shown(process: Process) -> str:
    """A title is short; of a command line the program's name and its first words."""
    program, _, words = process.title.partition(" ")
    return f"{Path(program).name} {words[:24]}".strip() + f" ({process.pid})"


def seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f} s"


@dataclass
class Stream:
    """A completion in flight. Moments are monotonic."""

    room: Room
    port: int
    model: str
    tokens: int
    count: int = 0
    first: float | None = None
    last: float | None = None
    longest: float = 0.0
    ended: float | None = None
    how: str = ""

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def begun(self, patience_s: float = 60.0) -> "Stream":
        until(lambda: self.count > 4 or self.ended, "the stream's first tokens", patience_s)
        if self.ended is not None:
            raise RuntimeError(f"the stream ended at its beginning: {self.how}")
        return self

    def _run(self) -> None:
        body = {
            "model": self.model,
            "prompt": "hello world",
            "max_tokens": self.tokens,
            "stream": True,
            "ignore_eos": True,
            "temperature": 0,
        }
        connection = http.client.HTTPConnection(self.room.address, self.port)
        try:
            connection.sock = self.room.connect(self.port, 10.0)
            connection.sock.settimeout(900.0)
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            for line in answer:
                self._take(line)
            self.how = self.how or f"HTTP {answer.status}, the end of the body"
        except (OSError, http.client.HTTPException) as error:
            self.how = self.how or repr(error)[:120]
        finally:
            self.ended = time.monotonic()
            connection.close()

    def _take(self, line: bytes) -> None:
        now = time.monotonic()
        if line.startswith(b"data: {") and b'"error"' not in line[:20]:
            if self.last is not None:
                self.longest = max(self.longest, now - self.last)
            self.count, self.last, self.first = self.count + 1, now, self.first or now
        elif line.startswith(b"data: {"):
            self.how = f"an error: {line[6:].decode(errors='replace').strip()[:110]}"
        elif line.startswith(b"data: [DONE]"):
            self.how = self.how or "done"

    def in_words(self, since: float) -> str:
        if self.ended is None:
            return f"still open, {self.count} tokens, longest gap {self.longest:.1f} s"
        silent = self.ended - (self.last or self.ended)
        return (
            f"{self.how} after {self.ended - since:.2f} s, "
            f"{silent:.2f} s after the last of {self.count} tokens"
        )


@dataclass
class Health:
    """Asks /health twenty times a second."""

    room: Room
    port: int
    since: float
    changes: list[tuple[float, str]] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            told = health(self.room, self.port)
            if not self.changes or self.changes[-1][1] != told:
                self.changes.append((time.monotonic() - self.since, told))

    def known(self) -> float | None:
        """When it first was not 200."""
        return next((at for at, told in self.changes if told != "200"), None)

    def stop(self) -> "Health":
        self._stop.set()
        self._thread.join()
        return self

    def in_words(self) -> str:
        return ", ".join(f"{told} at {at:.2f} s" for at, told in self.changes[:8])


def health(room: Room, port: int, path: str = "/health") -> str:
    connection = http.client.HTTPConnection(room.address, port)
    try:
        connection.sock = room.connect(port, 2.0)
        connection.request("GET", path)
        return str(connection.getresponse().status)
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
    finally:
        connection.close()


@dataclass(frozen=True, slots=True)
class Api:
    room: Room
    port: int
    model: str

    def complete(self, prompt: object, tokens: int, timeout_s: float = 300.0) -> int | str:
        """How many tokens came, or what came instead."""
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        connection = http.client.HTTPConnection(self.room.address, self.port)
        try:
            connection.sock = self.room.connect(self.port, 10.0)
            connection.sock.settimeout(timeout_s)
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            told = answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            return repr(error)[:120]
        finally:
            connection.close()
        if answer.status != 200:
            return f"HTTP {answer.status}: {told[:160]}"
        return int(json.loads(told)["usage"]["completion_tokens"])


def until(look: Callable[[], object], what: str, patience_s: float, pause_s: float = 0.02) -> None:
    """Raises TimeoutError."""
    end = time.monotonic() + patience_s
    while not look():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {patience_s:.0f} s: {what}")
        time.sleep(pause_s)


def uvm_threads(proc: Path = Path("/proc")) -> list[str]:
    """Kernel threads of the driver that exist only while some process uses CUDA."""
    found = []
    for folder in proc.iterdir():
        if folder.name.isdigit():
            try:
                name = (folder / "comm").read_text().strip()
            except OSError:
                continue
            if name.startswith("UVM GPU"):
                found.append(name)
    return sorted(found)

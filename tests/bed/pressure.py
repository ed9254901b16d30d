"""Real pressure on a node's memory, bounded: a rank that eats, and one that thrashes in a control group.

The floor of the rank is set above or just below what the machine has: nothing else here is short of memory.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sparkd.records.defaults import GIB, MIB
from sparkd.records.rank import MemoryNeed, RankSpec
from sparkd.records.report import Condemned
from sparkd_agent.local_socket import ask
from sparkd_agent.watch.sample import parse_memory
from tests.bed.agent_process import AgentProcess, ScriptedCoordinator, until
from tests.bed.ranks import rank_spec

LEAST_BYTES = 6 * GIB
"""MemAvailable never falls below this here: other work runs on the machine."""
AHEAD_BYTES = 3 * GIB
BELOW_BYTES = 3 * GIB // 2
"""The eater stops by itself so much below the floor: a deaf agent is seen, and nobody is hurt."""
GROUP_BYTES = 96 * MIB
FILE_BYTES = 384 * MIB

EATER = """#!{python} -IS
import mmap, os, time
if os.getuid() == 0:
    os.nice(-15)
print("the eater is up", flush=True)
while not os.path.exists({go!r}):
    time.sleep(0.02)
held, step, begun = [], 32 << 20, time.monotonic()
meminfo = os.open("/proc/meminfo", os.O_RDONLY)
while int(os.pread(meminfo, 999, 0).split(b"MemAvailable:")[1].split()[0]) * 1024 > {least}:
    held.append(mmap.mmap(-1, step, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE))
    time.sleep(max(0.0, begun + len(held) * step / {speed} - time.monotonic()))
open({go!r} + ".full", "w").close()
time.sleep(3600)
"""

THRASHER = """#!{python} -IS
import mmap, os, time
print("the thrasher is up", flush=True)
while not os.path.exists({go!r}):
    time.sleep(0.02)
with open({group!r}, "w") as group:
    group.write(str(os.getpid()))
with open({file!r}, "rb") as file:
    pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print("the thrasher thrashes", time.monotonic(), flush=True)
total = 0
while True:
    for at in range(0, len(pages), 4096):
        total += pages[at]
"""


def available() -> int:
    memory = parse_memory(Path("/proc/meminfo").read_bytes())
    assert memory is not None
    return memory.available


@dataclass
class Story:
    """What was seen from outside while a rank was ended. Bytes, seconds."""

    condemned: Condemned
    lowest: int
    known: float
    """From the word to begin until the agent said that the rank must go."""
    took: float
    """Until all of it was gone."""
    answers: list[float] = field(default_factory=list)
    """How long the agent took to say how it is."""
    events: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return (
            f"{self.condemned.cause} known after {self.known:.1f} s, gone after {self.took:.1f} s, "
            f"MemAvailable at least {self.lowest / GIB:.2f} GiB, slowest status {max(self.answers):.3f} s: "
            f"{self.condemned.reason}"
        )


class NobodyKnew(AssertionError):
    """The eater went through the floor in so many seconds, and nobody ended it."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"nobody ended it within {seconds:.1f} s")
        self.seconds = seconds


class TooBusy(Exception):
    """The machine did not let the eater eat half as fast as it should: nothing was learnt."""


class Observer(threading.Thread):
    """Asks the agent for its status and measures, ten times a second."""

    def __init__(self, socket: Path) -> None:
        super().__init__(daemon=True)
        self._socket = socket
        self._over = threading.Event()
        self.lowest = available()
        self.answers: list[float] = []

    def run(self) -> None:
        while not self._over.wait(0.1):
            begun = time.monotonic()
            ask(self._socket, {"ask": "status"})
            self.answers.append(time.monotonic() - begun)
            self.lowest = min(self.lowest, available())

    def end(self) -> None:
        self._over.set()
        self.join(30.0)


@dataclass
class PressedNode:
    """One agent with one rank, which waits for the word to begin."""

    agent: AgentProcess
    script: ScriptedCoordinator
    spec: RankSpec

    @property
    def _go(self) -> Path:
        return self.agent.folder / "go"

    @property
    def _full(self) -> Path:
        """The eater has gone as far below the floor as it may."""
        return self.agent.folder / "go.full"

    @property
    def _known(self) -> bool:
        return any(rank.condemned for rank in self.script.reports[-1].ranks)

    def quiet_for(self, seconds: float) -> None:
        """The rank lives, however low the floor makes the node look."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            report = self.script.later()
            assert [(rank.state, rank.condemned) for rank in report.ranks] == [("running", None)]

    def begin(self) -> Story:
        """Give the word, and wait until the rank is gone."""
        observer = Observer(self.agent.folder / "agent.sock")
        observer.start()
        begun = time.monotonic()
        self._go.touch()
        try:
            until(lambda: self._known or self._full.exists(), "it to be known")
            if not self._known:
                raise NobodyKnew(time.monotonic() - begun)
            known = time.monotonic() - begun
            gone = self.script.rank(self.spec.name, "gone")
            took = time.monotonic() - begun
        finally:
            observer.end()
        assert gone.condemned is not None, gone
        events = {one.kind: one.reason for report in tuple(self.script.reports) for one in report.events}
        return Story(gone.condemned, observer.lowest, known, took, observer.answers, events)


@contextmanager
def pressed_node(
    folder: Path, engine: str, floor: int, *, guest: bool | None = None, **names: object
) -> Iterator[PressedNode]:
    """A real agent whose engine is one of the programs above; the coordinator is silent about the memory.

    `guest`: see AgentProcess; None: as tests are run.
    """
    need = MemoryNeed(floor_loading_bytes=floor, floor_serving_bytes=floor)
    spec = rank_spec("sparkd-t-g1-r0", memory=need)
    with ScriptedCoordinator() as script:
        agent = AgentProcess(folder, script.url)
        agent.guest = agent.guest if guest is None else guest
        agent.start()
        values = {"python": sys.executable, "go": str(folder / "go"), **names}
        (folder / "engine").write_text(engine.format(**values))
        try:
            until(lambda: script.hellos, "a hello")
            script.publish(1, ranks=(spec,))
            script.rank(spec.name, "running")
            yield PressedNode(agent, script, spec)
        finally:
            script.publish(2)
            with contextlib.suppress(AssertionError):
                until(lambda: not agent.rank_pids(), "the rank to end")
            agent.end()


def eat(folder: Path, speed: float) -> tuple[Story, int]:
    """A rank that takes `speed` bytes a second towards a floor 3 GiB below what is available; the floor.

    Raises TooBusy when the machine did not let it.
    """
    floor = available() - AHEAD_BYTES
    assert floor - BELOW_BYTES >= LEAST_BYTES, "this machine has too little memory to spare"
    slow_s = 2 * AHEAD_BYTES / speed
    with pressed_node(folder, EATER, floor, least=floor - BELOW_BYTES, speed=speed) as node:
        node.quiet_for(2.0)
        try:
            story = node.begin()
        except NobodyKnew as error:
            if error.seconds > slow_s + 2 * BELOW_BYTES / speed:
                raise TooBusy(str(error)) from None
            raise
        if story.known > slow_s:
            raise TooBusy(str(story))
        return story, floor


def thrash(folder: Path, group: Path) -> Story:
    """A rank whose mapped file is four times as large as the control group lets it have."""
    file = _weights(folder)
    with pressed_node(
        folder, THRASHER, available() + 4 * GIB, group=str(group / "cgroup.procs"), file=str(file)
    ) as node:
        node.quiet_for(6.0)
        return node.begin()


def _weights(folder: Path) -> Path:
    """A file on the disk and not in the cache: pages there belong to the group of their first reader."""
    file = folder / "weights"
    with file.open("wb") as weights:
        for _ in range(FILE_BYTES // MIB):
            weights.write(b"w" * MIB)
        weights.flush()
        os.fsync(weights.fileno())
        os.posix_fadvise(weights.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return file


@contextmanager
def memory_group(name: str) -> Iterator[Path]:
    """A control group with little memory, of either version. Raises OSError where none can be made."""
    root = Path("/sys/fs/cgroup")
    first = root / "memory" if (root / "memory").is_dir() else root
    group = first / name
    group.mkdir()
    limit = "memory.limit_in_bytes" if first.name == "memory" else "memory.max"
    try:
        (group / limit).write_text(str(GROUP_BYTES))
        yield group
    finally:
        end = time.monotonic() + 10.0
        while group.exists() and time.monotonic() < end:
            with contextlib.suppress(OSError):
                group.rmdir()
            time.sleep(0.05)


@contextmanager
def thrashing(folder: Path) -> Iterator[None]:
    """Some process of this machine thrashes, in a control group of its own: every node on the machine sees
    it in vmstat and in the pressure. Needs root.
    """
    file, go = _weights(folder), folder / "go"
    with memory_group(f"sparkd-thrash-{os.getpid()}") as group:
        program = folder / "thrasher"
        values = {"python": sys.executable, "go": str(go), "group": str(group / "cgroup.procs")}
        program.write_text(THRASHER.format(**values, file=str(file)))
        program.chmod(0o755)
        go.touch()
        process = subprocess.Popen([program], stdout=subprocess.DEVNULL)
        try:
            yield
        finally:
            process.kill()
            process.wait()
            go.unlink()

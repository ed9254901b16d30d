"""What an agent asks of the kernel from the look that condemns a rank to the rank's end, as strace saw it.

On a node without memory a new process, a new file or an import may wait for what is to be killed.
"""

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparkd.records.defaults import GIB
from tests.bed.agent_process import until
from tests.bed.pressure import EATER, NobodyKnew, available, pressed_node

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace (a Debian package)"),
    pytest.mark.skipif(available() < 6 * GIB, reason="needs 3 GiB that nobody else uses"),
]
_LINE = re.compile(r"^(\d+) +(\w+)(.*)$")
"""A call that another thread's came between is told of twice: where it is `resumed` it names no file."""
STARTS = {"fork", "vfork", "clone", "clone3", "execve", "execveat"}
OPENS = {"open", "openat", "openat2", "creat"}
WRITES = {"write", "pwrite64", "writev", "sendto", "sendmsg", "fsync", "fdatasync", "connect", "unlink"}


@dataclass(frozen=True)
class Call:
    thread: int
    name: str
    rest: str


@contextmanager
def traced(pid: int, file: Path) -> Iterator[None]:
    """All that the process asks of the kernel meanwhile, in the file."""
    errors = file.with_suffix(".errors")
    with errors.open("w") as log:
        strace = subprocess.Popen(["strace", "-f", "-y", "-o", file, "-p", str(pid)], stderr=log)
    try:
        until(lambda: "attached" in errors.read_text() or strace.poll() is not None, "strace to be there")
        if strace.poll() is not None:
            pytest.skip(f"strace may not look at a process here: {errors.read_text()}")
        yield
    finally:
        strace.terminate()
        strace.wait()


def calls_of(file: Path) -> list[Call]:
    lines = [_LINE.match(line) for line in file.read_text().splitlines()]
    return [Call(int(line[1]), line[2], line[3]) for line in lines if line]


def test_nothing_is_started_and_nothing_opened_between_the_look_and_the_kill(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    floor = available() - 2 * GIB
    with pressed_node(tmp_path, EATER, floor, least=floor - GIB // 2, speed=GIB) as node:
        node.quiet_for(1.0)
        agent = node.agent.pid
        with traced(agent, trace):
            try:
                story = node.begin()
            except NobodyKnew as error:
                pytest.skip(f"this machine is too busy: {error}")
            time.sleep(0.2)  # the last calls are on their way into the file
    assert story.condemned.cause == "MEMORY_PLUNGE", story

    calls = [call for call in calls_of(trace) if call.thread == agent]
    kills = [
        at for at, call in enumerate(calls) if call.name == "pidfd_send_signal" and "SIGKILL" in call.rest
    ]
    looks = [at for at in range(kills[0]) if "/proc/meminfo>" in calls[at].rest]
    between = calls[looks[-1] + 1 : kills[0]]
    assert not [call for call in between if call.name in STARTS | OPENS | WRITES], between
    # And until it is proved gone: /proc is listed, and read what the shim wrote of its end.
    after = calls[kills[0] :]
    assert not [call for call in after if call.name in STARTS and "CLONE_THREAD" not in call.rest]
    opened = [call for call in after if call.name in OPENS]
    assert any('"/proc/' in call.rest for call in opened)
    ranks = str(tmp_path / "state" / "ranks")
    strange = [
        call for call in opened if not re.search(rf'"(/proc\b|/sys/fs/cgroup/|/dev/shm"|{ranks})', call.rest)
    ]
    assert not strange
    assert not [call for call in opened if "O_CREAT" in call.rest]

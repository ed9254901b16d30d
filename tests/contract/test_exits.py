"""Exit statuses from each source, with real processes."""

import os
import platform
import signal
import subprocess
import sys

import pytest

from sparkd.clock import Instant
from sparkd_agent import exits
from sparkd_agent.logs import LogLine

RANK = "sparkd-t-g1-r0"
KERNEL = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
_GRANDCHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE)
print(child.pid, flush=True)
sys.stdin.readline()
child.kill() if sys.argv[2] == "kill" else child.stdin.close()
child.wait()
print("reaped", flush=True)
sys.stdin.readline()
"""


def ended(title: str, pid: int = 7) -> exits.Ended:
    return exits.Ended(title, pid, Instant(5.0, 1000.0))


@pytest.mark.skipif(KERNEL < (6, 15), reason="PIDFD_INFO_EXIT came with Linux 6.15")
@pytest.mark.parametrize(
    ("code", "how", "expected"),
    [
        ("import sys; sys.stdin.read(); sys.exit(7)", "wait", (7, None)),
        ("import sys; sys.stdin.read()", "wait", (0, None)),
        ("import time; time.sleep(600)", "kill", (None, signal.SIGKILL)),
    ],
)
def test_the_kernel_knows_how_a_process_ended_that_somebody_else_reaped(
    code: str, how: str, expected: tuple[int | None, int | None]
) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _GRANDCHILD, code, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        pidfd = os.pidfd_open(pid)
        try:
            assert exits.from_pidfd(RANK, ended("VLLM::EngineCore", pid), pidfd) is None
            parent.stdin.write("go\n")
            parent.stdin.flush()
            assert parent.stdout.readline() == "reaped\n"
            found = exits.from_pidfd(RANK, ended("VLLM::EngineCore", pid), pidfd)
        finally:
            os.close(pidfd)
            parent.stdin.close()
    assert found is not None
    assert (found.code, found.signal, found.how) == (*expected, "pidfd")
    assert (found.process, found.pid, found.mono, found.at) == ("VLLM::EngineCore", pid, 5.0, 1000.0)


def line(text: str) -> LogLine:
    return LogLine(1.0, 2.0, "stdout", text)


DIED = (
    "ERROR [multiproc_executor.py:315] Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting"
)


def test_the_launchers_line_is_believed_for_a_worker() -> None:
    found = exits.from_log(RANK, ended("VLLM::Worker_TP1"), [line("x"), line(DIED)])
    assert found is not None
    assert (found.code, found.signal, found.how) == (None, 9, "log")


@pytest.mark.parametrize(
    ("title", "texts"),
    [
        ("VLLM::EngineCore", [DIED]),
        ("leader", [DIED]),
        ("VLLM::Worker_TP1", ["nothing of the kind"]),
        ("VLLM::Worker_TP1", [DIED, DIED.replace("-9", "1")]),
    ],
)
def test_a_log_that_does_not_say_is_not_guessed_from(title: str, texts: list[str]) -> None:
    assert exits.from_log(RANK, ended(title), [line(text) for text in texts]) is None


def test_unknown_stays_unknown() -> None:
    found = exits.unknown(RANK, ended("VLLM::EngineCore"))
    assert (found.code, found.signal, found.how) == (None, None, "unknown")
    assert exits.describe(found) == "VLLM::EngineCore (pid 7) ended, nobody knows how"

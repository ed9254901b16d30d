import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sparkd.daemon import Daemon, end_daemons, is_alive, start_daemon

PATIENCE_S = 20.0


@pytest.fixture
def started() -> Iterator[list[Daemon]]:
    daemons: list[Daemon] = []
    yield daemons
    end_daemons(daemons, 0.0)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def wait_for(file: Path, text: str) -> str:
    until = time.monotonic() + PATIENCE_S
    while not (file.exists() and text in file.read_text()):
        assert time.monotonic() < until, f"{file} never said {text!r}"
        time.sleep(0.02)
    return file.read_text()


def test_a_daemon_has_a_session_of_its_own_and_nothing_of_ours(tmp_path: Path, started: list[Daemon]) -> None:
    log = tmp_path / "log"
    code = (
        "import os, sys, time; print(os.getsid(0), sorted(os.listdir('/proc/self/fd'))[:3], sys.stdin.read(),"
        "len(os.listdir('/proc/self/fd')), os.getcwd(), 'up', flush=True); time.sleep(600)"
    )
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    try:
        started.append(start_daemon(python(code), log, tmp_path))
    finally:
        os.close(reader)
        os.close(writer)
    said = wait_for(log, "up")
    # 0, 1, 2 and the one that lists them.
    assert said.split() == [str(started[0].pid), "['0',", "'1',", "'2']", "4", str(tmp_path), "up"]
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_daemon_is_one_process_and_not_its_pid(tmp_path: Path, started: list[Daemon]) -> None:
    daemon = start_daemon(python("import time; time.sleep(600)"), tmp_path / "log", tmp_path)
    started.append(daemon)
    assert is_alive(daemon)
    other = replace(daemon, start_time=daemon.start_time - 1)
    assert not is_alive(other)
    assert not is_alive(replace(daemon, boot="another boot"))
    assert end_daemons([other], 0.0) == []
    assert is_alive(daemon)


def test_ending_is_gentle_first(tmp_path: Path, started: list[Daemon]) -> None:
    code = (
        "import signal, sys, time; signal.signal(15, lambda *_: (print('bye'), sys.exit()));"
        "print('up', flush=True); time.sleep(600)"
    )
    started.append(start_daemon(python(code), tmp_path / "log", tmp_path))
    wait_for(tmp_path / "log", "up")
    assert end_daemons(started, PATIENCE_S) == []
    assert "bye" in (tmp_path / "log").read_text()


def test_who_ignores_sigterm_is_killed(tmp_path: Path, started: list[Daemon]) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    started.append(start_daemon(python(code), tmp_path / "log", tmp_path))
    wait_for(tmp_path / "log", "up")
    end_daemons(started, 0.2)
    until = time.monotonic() + PATIENCE_S
    while is_alive(started[0]):
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_zombie_does_not_live() -> None:
    child = subprocess.Popen(python("pass"))
    stat = Path(f"/proc/{child.pid}/stat")
    start = int(stat.read_text().rpartition(")")[2].split()[19])
    daemon = Daemon(child.pid, start, Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    until = time.monotonic() + PATIENCE_S
    while stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < until
        time.sleep(0.01)
    assert not is_alive(daemon)
    child.wait()

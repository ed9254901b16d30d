"""Stand-ins for ranks that behave badly: `python hostile.py BEHAVIOUR [ARGUMENT…]`.

Standard library only. Each behaviour is one function; what it prints is what the tests wait for.
"""

import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_SLEEP = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - the log of a rank


def sleep_for_ever() -> None:
    """By the second: a signal that comes just before Python falls asleep is looked at when it wakes."""
    while True:
        time.sleep(1)


def titled(title: str, *args: str) -> "subprocess.Popen[bytes]":
    """A child as setproctitle leaves it: the command line is the title, the environment is not to be seen."""
    return subprocess.Popen([title, *_SLEEP[1:], *args], executable=sys.executable, env={})


def wait(*_: str) -> None:
    say("ready")
    sleep_for_ever()


def exits(code: str) -> None:
    say("last words")
    sys.exit(int(code))


def aborts() -> None:
    os.abort()


def ignores_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wait()


def exits_leaving_children(code: str) -> None:
    child = subprocess.Popen(_SLEEP)
    say("child", child.pid)
    os._exit(int(code))


def worker(title: str = "VLLM::Worker_TP0", words: str = "exit code {}") -> None:
    """A leader with an essential worker and a child that is not essential; it tells of the worker's end."""
    helper = subprocess.Popen(_SLEEP)
    child = titled(title)
    say("worker", child.pid, "helper", helper.pid)
    say(words.format(child.wait()))
    sleep_for_ever()


def worker_that_forks() -> None:
    """Its worker has a child of its own title for a while, as before every compiler that it starts."""
    code = (
        "import os, time\n"
        "child = os.fork()\n"
        "if child == 0:\n    time.sleep(1); os._exit(0)\n"
        "print('fork', child, flush=True); os.waitpid(child, 0); print('over', flush=True); time.sleep(600)"
    )
    worker = subprocess.Popen(["VLLM::Worker_TP0", "-I", "-S", "-c", code], executable=sys.executable, env={})
    say("worker", worker.pid)
    say("exit code", worker.wait())
    sleep_for_ever()


def engine_and_worker() -> None:
    """Two essential processes; the worker exits with 0 on SIGTERM. The leader reaps both and stays."""
    core = titled("VLLM::EngineCore")
    polite = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0)); print('polite', flush=True); "
        "time.sleep(600)"
    )
    worker = subprocess.Popen(
        ["VLLM::Worker_TP0", "-I", "-S", "-c", polite], executable=sys.executable, env={}
    )
    say("core", core.pid, "worker", worker.pid)
    core.wait()
    worker.wait()
    sleep_for_ever()


def daemons() -> None:
    """Grandchildren in sessions of their own whose parents are gone."""
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                say("daemon", os.getpid())
                sleep_for_ever()
            os._exit(0)
        os.wait()
    wait()


def breeds() -> None:
    """Always has children that were born after the last look."""
    say("ready")
    while True:
        for _ in range(4):
            if os.fork() == 0:
                time.sleep(0.05)
                os._exit(0)
        os.waitpid(-1, os.WNOHANG)
        time.sleep(0.005)


def zombies() -> None:
    """Never waits for its dead children, and its own first thread is dead while another one runs on."""
    for _ in range(5):
        if os.fork() == 0:
            os._exit(0)
    wait()


def floods(megabytes: str) -> None:
    block = b"a line of the ordinary length that an engine writes into its log, again and again\n" * 800
    for _ in range(int(megabytes) * (1 << 20) // len(block)):
        os.write(1, block)
    say("flood over")


def fills(path: str) -> None:
    """Fills the disk that holds the path, says so, and frees it when told by SIGUSR1."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    say("filling")
    time.sleep(0.2)
    with Path(path).open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
    for number in range(2000):
        say("written on a full disk", number)
    signal.sigwait({signal.SIGUSR1})
    Path(path).unlink()
    for number in range(2000):
        say("written afterwards", number)
    sleep_for_ever()


def shares(folder: str, *names: str) -> None:
    """Maps the first name for good; a child holds the others open."""
    first, *others = [Path(folder, name) for name in names]
    with first.open("w+b") as file:
        file.truncate(4096)
        mapping = mmap.mmap(file.fileno(), 4096)
    held = [path.open("w+b") for path in others]
    for file in held:
        file.write(b"x" * 10)
    wait()
    del mapping


def handles_usr2() -> None:
    """The leader has a handler for SIGUSR2, its child has none and would die of it."""
    signal.signal(signal.SIGUSR2, lambda *_: say("stacks"))
    say("child", subprocess.Popen(_SLEEP).pid)
    wait()


def lines(*texts: str) -> None:
    for text in texts:
        os.write(1, text.encode().decode("unicode_escape").encode())
    os.write(2, b"on stderr\n")


def echo(*words: str) -> None:
    say("argv", list(words))
    wait()


def caches() -> None:
    """Which of its caches an earlier rank has used; then it uses all of them."""
    names = ("CUDA_CACHE_PATH", "FLASHINFER_WORKSPACE_BASE", "HOME", "TORCHINDUCTOR_CACHE_DIR")
    names += ("TRITON_CACHE_DIR", "VLLM_CACHE_ROOT", "XDG_CACHE_HOME")
    marks = {name: Path(os.environ[name], "compiled") for name in names}
    say("found", sorted(name for name, mark in marks.items() if mark.exists()))
    for mark in marks.values():
        mark.touch()


def babbles() -> None:
    """It never stops talking, and stands still when nobody reads."""
    say("ready")
    line = b"x" * 100 + b"\n"
    while True:
        os.write(1, line * 100)
        time.sleep(0.005)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])

"""`vllm serve`: rank 0 becomes the API server, a follower watches over its worker."""

import faulthandler
import os
import signal
import socket
import sys
import threading
import time

from stand_in.place import Lines, Place, exit_code, fork, read_setting, write
from stand_in.probe import PROBE
from stand_in.probe import main as run_probe

SERVE = ["-m", "vllm.entrypoints.cli.main", "serve"]


def main(folder: str, python: str) -> None:
    if sys.argv[1:3] == PROBE:
        words = sys.argv[3:]
        run_probe(words, read_setting(folder, "PROBE", rank=int(words[words.index("--rank") + 1])))
        return
    if sys.argv[1:4] != SERVE:
        site = os.path.join(
            folder, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages"
        )
        os.environ["PYTHONPATH"] = site
        os.execv(python, [python, *sys.argv[1:]])
    faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)  # as the plug-in does; forks have it too
    place = Place(folder, sys.argv[4:])
    write(2, "Triton is installed, but doesn't include CPU backend. Disabling Triton.\n")
    place.log("Resolved architecture: Qwen3ForCausalLM", "model.py:733")
    place.log("Using max model len 512", "model.py:2152")
    if place.setting("IGNORE_TERM"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if place.setting("DAEMON"):
        leave_daemon()
    flood(place)
    place.enter("launching")
    time.sleep(place.seconds("BOOT_S", 0.3) / 3)
    start_tracker()
    if place.rank == 0:
        head(place)
    else:
        follower(place)


def head(place: Place) -> None:
    from stand_in.api import Api

    api = Api(place)
    api.bind()
    if not place.setting("IGNORE_TERM"):
        signal.signal(signal.SIGTERM, lambda *_: api.shut_down())
    api.start_engine()
    place.enter("rendezvous")
    api.wait_for_engine()
    api.serve()


def follower(place: Place) -> None:
    from stand_in.worker import run_worker

    place.log(
        f"Launching vLLM (v0.32.0) headless multiproc executor, with head node address "
        f"{place.flag('master-addr', '127.0.0.1')}:{place.flag('master-port', '29501')} for torch.distributed process group.",
        "serve.py:224",
    )
    here, there = socket.socketpair()

    def become_worker() -> None:
        here.close()
        place.end_cleanly_on_sigterm()
        run_worker(place, Lines(there))

    pid = fork(become_worker)
    there.close()
    worker = Lines(here)
    if not place.setting("IGNORE_TERM"):
        signal.signal(signal.SIGTERM, lambda *_: stop_slowly(place, pid))
    place.enter("rendezvous")
    ready = threading.Event()
    threading.Thread(target=watch_boot, args=(place, worker, ready), daemon=True).start()
    _, status = os.waitpid(pid, 0)
    if not ready.is_set():
        place.log("Exception: WorkerProc failed to start.", "multiproc_executor.py:700", "ERROR")
        time.sleep(place.seconds("EXIT_DELAY_S", 2))
        os._exit(1)
    place.log(
        f"Worker proc VllmWorker-{place.rank} died unexpectedly (exit code: {exit_code(status)}), shutting down executor.",
        "multiproc_executor.py:315",
        "ERROR",
    )
    time.sleep(place.seconds("EXIT_DELAY_S", 2))
    place.remove_segments()
    os._exit(0)


def watch_boot(place: Place, worker: Lines, ready: threading.Event) -> None:
    while True:
        try:
            message = worker.receive()
        except (EOFError, OSError):
            return
        if "phase" in message:
            place.enter(message["phase"])
        if "ready" in message:
            place.segment_paths += message["segments"]
            ready.set()
            place.enter("serving")


def stop_slowly(place: Place, worker_pid: int) -> None:
    """vLLM takes 5 s, then SIGTERM, then 4 s, then SIGKILL of its worker: 11 to 13 s, exit code 0."""
    time.sleep(place.seconds("TERM_S", 11))
    os.kill(worker_pid, signal.SIGKILL)
    place.remove_segments()
    os._exit(0)


def start_tracker() -> None:
    """An untitled child, as multiprocessing's resource tracker: ends with the last holder of its pipe."""
    reading, writing = os.pipe()

    def track() -> None:
        os.close(writing)
        os.read(reading, 1)

    fork(track)
    os.close(reading)
    os.set_inheritable(writing, False)


def leave_daemon() -> None:
    def first() -> None:
        os.setsid()
        fork(lambda: time.sleep(3600))

    os.waitpid(fork(first), 0)


def flood(place: Place) -> None:
    line = "Flooding: " + "x" * 180
    for _ in range(int(place.setting("FLOOD_BYTES", "0")) // 256):
        place.log(line)

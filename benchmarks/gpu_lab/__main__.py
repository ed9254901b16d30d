"""sparkd and bare vLLM, two ranks on one GPU, each fault with a stream in flight.

    PYTHONPATH=.:agents python3 -m benchmarks.gpu_lab LANE... --site SITE --model DIR --out DIR
    .venv/bin/python -m benchmarks.gpu_lab LANE... --cpu --engine PYTHON --model DIR --out DIR

Lanes run side by side, each in a process, two network namespaces and a deployment of its own; one that fails
disturbs no other. Each prints its figures as they are known, ends by itself after `--for` seconds, and leaves
logs and incidents in the folder. Needs root. SITE is the unpacked folder of vLLM's CUDA build
(facts/gpu-lab.md); with `--cpu` the ranks are vLLM's CPU build over gloo, to rehearse the same.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tarfile
import time
import traceback
from pathlib import Path

from benchmarks.gpu_lab.lanes import LANES
from benchmarks.gpu_lab.rooms import two_rooms
from benchmarks.gpu_lab.scenarios import Bench
from benchmarks.gpu_lab.seen import Card, uvm_threads
from benchmarks.gpu_lab.setting import Setting, engine_of
from sparkd_agent.procfs import ProcFs

_TAIL = 150_000
_GRACE_S = 25.0


def main() -> int:
    options = _parse()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.inner:
        return _one(options, options.lanes[0])
    return _all(options)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_lab", formatter_class=argparse.RawDescriptionHelpFormatter)
    names = "; ".join(f"{name}: {lane.what}" for name, lane in LANES.items())
    parser.add_argument("lanes", nargs="+", choices=LANES, metavar="LANE", help=names)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--site", type=Path)
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="Further folders of packages.")
    parser.add_argument("--engine")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--max-len", type=int, default=32_768)
    parser.add_argument("--for", type=float, default=500.0, dest="seconds")
    parser.add_argument("--apart", type=float, default=2.0, help="Seconds between the starts of two lanes.")
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _one(options: argparse.Namespace, name: str) -> int:
    """A lane, in this process."""
    begun = time.monotonic()
    folder = options.out / name
    folder.mkdir(parents=True, exist_ok=True)
    report = (folder / "figures.txt").open("a")

    def say(text: str) -> None:
        line = f"[{time.monotonic() - begun:6.1f}] {name}: {text}"
        for out in (sys.stdout, report):
            out.write(line + "\n")
            out.flush()

    setting = Setting(not options.cpu, options.engine, options.model, options.max_len)
    signal.signal(signal.SIGTERM, _stop)
    try:
        with two_rooms(LANES[name].number, options.out / "scratch") as rooms:
            bench = Bench(name, rooms, folder, setting, Card(), say, begun + options.seconds)
            LANES[name].run(bench)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - told, and the folder is kept
        say(f"FAILED: {error!r}"[:900])
        (folder / "failure.txt").write_text(traceback.format_exc())
        return 1
    say("done")
    return 0


def _stop(_number: int, _frame: object) -> None:
    raise SystemExit("its time is over")


def _all(options: argparse.Namespace) -> int:
    procfs, card = ProcFs(), Card()
    engine = options.engine or engine_of(options.site, options.out / "engine", options.also)
    words = ["--inner", "--out", options.out, "--model", options.model, "--engine", engine]
    words += ["--max-len", options.max_len, "--for", options.seconds, *(["--cpu"] if options.cpu else [])]
    _say(f"before: {card.in_words()}; UVM threads of the card: {uvm_threads() or 'none'}")
    begun = time.monotonic()
    running: dict[str, subprocess.Popen[bytes]] = {}
    waiting = list(options.lanes)
    context: bool | None = None
    try:
        while running or waiting:
            now = time.monotonic() - begun
            if waiting and now >= options.apart * (len(options.lanes) - len(waiting)):
                name = waiting.pop(0)
                argv = [sys.executable, "-m", "benchmarks.gpu_lab", name, *map(str, words)]
                running[name] = subprocess.Popen(argv, start_new_session=True)
            for name, lane in list(running.items()):
                if lane.poll() is not None:
                    del running[name]
                elif now > options.seconds + _GRACE_S:
                    lane.kill()
                elif now > options.seconds:
                    lane.terminate()
            context = _tell_contexts(card, context, begun)
            time.sleep(0.5)
    finally:
        for lane in running.values():
            lane.kill()
            lane.wait()
        left = _sweep(procfs, options.out)
        _pack(options)
    time.sleep(2.0)
    _tell_contexts(card, context, begun)
    threads = uvm_threads() or "none"
    _say(f"after: {card.in_words()}; UVM threads of the card: {threads}; swept: {left or 'nothing'}")
    return 0


def _tell_contexts(card: Card, before: bool | None, begun: float) -> bool | None:
    """The driver's threads come and go with the first and the last process on the card."""
    held = card.held()
    if held is None:
        return None
    now = bool(uvm_threads())
    if before is not None and now != before:
        what, at = "appear" if now else "disappear", time.monotonic() - begun
        _say(f"[{at:6.1f}] UVM threads {what}: {len(held)} processes on the card")
    return now


def _sweep(procfs: ProcFs, out: Path) -> list[str]:
    """Kill what lanes that died have left: daemons and ranks whose files are below the folder."""
    left, own = [], os.getsid(0)
    for pid, stat in procfs.stats().items():
        # Who called us names the folder as well; everything of lanes has a session of its own.
        if stat.ended or stat.session == own:
            continue
        words = " ".join(procfs.cmdline(pid))
        folder = procfs.environ_value(pid, "SPARKD_RANK_FOLDER") or ""
        if str(out) in words or folder.startswith(str(out)) or _is_engine_here(procfs, pid, out):
            left.append(f"{pid} {words[:60]}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return left


def _is_engine_here(procfs: ProcFs, pid: int, out: Path) -> bool:
    """A titled one hides its environment, but not where it writes."""
    if not procfs.title(pid).startswith("VLLM::"):
        return False
    links = [Path(f"/proc/{pid}", name) for name in ("exe", "fd/1", "fd/2")]
    with contextlib.suppress(OSError):
        return any(str(out) in str(link.readlink()) for link in links)
    return False


def _pack(options: argparse.Namespace) -> None:
    """The ends of all texts, so that they can be carried away."""
    with tarfile.open(options.out / "logs.tar.xz", "w:xz") as made:
        for name in options.lanes:
            for path in sorted((options.out / name).rglob("*")):
                if not path.is_file() or path.is_symlink() or path.suffix in (".sqlite", ".sock", ".toml"):
                    continue
                if path.name in ("token", "lock") or path.name.endswith(("-wal", "-shm")):
                    continue
                size = path.stat().st_size
                with path.open("rb") as text:
                    text.seek(max(0, size - _TAIL))
                    entry = tarfile.TarInfo(str(path.relative_to(options.out)))
                    entry.size = min(size, _TAIL)
                    made.addfile(entry, text)


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())

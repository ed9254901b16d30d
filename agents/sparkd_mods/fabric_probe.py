"""The collective probe: an all-reduce between the nodes of a gang, in the place of its ranks.

It is no mod: `python -m sparkd_mods.fabric_probe` runs in the rank's own interpreter and environment, so what
it finds is what the rank would find. It tells of itself in lines of JSON, one for each stage (see
`sparkd/records/collective.py`), ends by itself after its time, and needs torch and nothing else. Exit codes:
0 done, 1 a rank or a collective failed, 3 it could not be tried.
"""

import argparse
import datetime as dt
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

LINE_PREFIX = "sparkd-probe "
RUNG = 8
"""Each sum of the ladder is so many times as large as the one before; the first has so many bytes."""
FREE_SHARE = 4
"""A quarter of the available memory is the largest buffer: on a Spark it is the desktop's memory too."""
BUSY_TIMES, LARGE_TIMES, LARGE_BYTES = 20, 4, 1 << 20
PEERS_POLL_S = 0.05
FAREWELL_S = 2.0


def tell(**said: object) -> None:
    sys.stdout.write(f"{LINE_PREFIX}{json.dumps(said)}\n")
    sys.stdout.flush()


def leave(code: int, **said: object) -> NoReturn:
    """Without the libraries' own ends: they wait for peers that may be gone."""
    if said:
        tell(**said)
    sys.stderr.flush()
    os._exit(code)


def unable(why: str) -> NoReturn:
    leave(3, unable=why)


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
        return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)
    except (OSError, ValueError, IndexError):
        return None


def ladder(most: int) -> list[int]:
    """Bytes of each sum: 8, 64, 512, … and the largest."""
    rungs = [RUNG]
    while rungs[-1] * RUNG < most:
        rungs.append(rungs[-1] * RUNG)
    return [*rungs, most] if most > rungs[-1] else rungs


def main(words: list[str]) -> None:
    args = read(words)
    # The default action of this signal needs neither this interpreter nor its lock, which NCCL may hold.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, args.within)
    deadline = time.monotonic() + args.within
    free = available_bytes()
    if free is not None and free < FREE_SHARE * args.most:
        wanted = f"a sum of {args.most >> 20} MiB wants {FREE_SHARE} times as much"
        unable(f"{free >> 20} MiB of memory are available, and {wanted}")
    torch, dist, backend = load()
    device = torch.device("cuda", 0) if backend == "nccl" else torch.device("cpu")
    try:
        torch.zeros(1, device=device).add_(1).cpu()
    except (RuntimeError, OSError) as error:
        unable(f"the device {device} does not answer: {first_line(error)}")
    tell(stage="imported", backend=backend, versions=versions(torch, backend))
    try:
        run(torch, dist, device, args, deadline)
    except Exception as error:  # noqa: BLE001 - whatever torch raises, its words are the finding
        leave(1, error=first_line(error))
    leave(0)


def read(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sparkd_mods.fabric_probe")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--host", required=True, help="of rank 0")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--most", type=int, default=256 << 20, help="bytes of the largest sum")
    parser.add_argument("--ladder", type=float, default=20.0, help="seconds for the ladder")
    parser.add_argument("--within", type=float, default=60.0, help="seconds until it ends, whatever it does")
    return parser.parse_args(words)


def load() -> tuple[Any, Any, str]:
    """torch, torch.distributed and the backend."""
    try:
        import torch
        import torch.distributed as dist
    except (ImportError, OSError) as error:
        unable(f"torch cannot be loaded: {first_line(error)}")
    if not dist.is_available():
        unable("this torch was built without torch.distributed")
    if torch.cuda.is_available() and dist.is_nccl_available():
        torch.cuda.set_device(0)
        return torch, dist, "nccl"
    return torch, dist, "gloo"


def versions(torch: Any, backend: str) -> dict[str, str]:
    found = {"torch": str(torch.__version__)}
    if backend == "nccl":
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        found["cuda"] = str(torch.version.cuda)
    return found


def run(torch: Any, dist: Any, device: Any, args: argparse.Namespace, deadline: float) -> None:
    """From the rendezvous to the last sum. Raises what torch raises."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    left = dt.timedelta(seconds=max(1.0, deadline - time.monotonic()))
    store = dist.TCPStore(
        args.host, args.port, args.ranks, args.rank == 0, timeout=left, wait_for_workers=False
    )
    store.set(f"backend/{args.rank}", backend)
    tell(stage="met")
    others = {store.get(f"backend/{rank}").decode() for rank in range(args.ranks)}
    if len(others) > 1:
        raise RuntimeError(f"some ranks have a GPU and some have none: {', '.join(sorted(others))}")
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("group", store),
        rank=args.rank,
        world_size=args.ranks,
        timeout=left,
    )
    tell(stage="joined")
    wait = torch.cuda.synchronize if backend == "nccl" else lambda: None
    first = torch.ones(2, device=device)
    dist.all_reduce(first)
    wait()
    if first.tolist() != [args.ranks, args.ranks]:
        raise RuntimeError(f"a sum of {args.ranks} ones gave {first.tolist()}")
    tell(stage="summed")
    climb(torch, dist, device, wait, args)
    tell(stage="done")
    say_farewell(store, args)


def climb(torch: Any, dist: Any, device: Any, wait: Callable[[], None], args: argparse.Namespace) -> None:
    """All ranks take the same rungs: what decides is what all of them have measured."""
    slowest = torch.zeros(1, dtype=torch.float64, device=device)
    spent, seconds, size = 0.0, 0.0, 0
    for bytes_ in ladder(args.most):
        times = BUSY_TIMES if bytes_ < LARGE_BYTES else LARGE_TIMES
        expected = seconds * bytes_ / size * (times + 1) if size else 0.0
        if spent + expected > args.ladder:
            return  # the last rung that was told is the largest that this link does in the time
        buffer = torch.ones(bytes_ // 4, device=device)
        dist.all_reduce(buffer)
        wait()
        began = time.perf_counter()
        for _ in range(times):
            dist.all_reduce(buffer)
        wait()
        slowest[0] = (time.perf_counter() - began) / times
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        seconds, size = float(slowest[0]), bytes_
        spent += seconds * (times + 1)
        tell(bytes=bytes_, seconds=seconds)


def say_farewell(store: Any, args: argparse.Namespace) -> None:
    """The store is rank 0's: it goes last, and nobody waits for somebody who does not come."""
    try:
        store.set(f"bye/{args.rank}", "1")
        names = [f"bye/{rank}" for rank in range(args.ranks)]
        end = time.monotonic() + FAREWELL_S
        while args.rank == 0 and not store.check(names) and time.monotonic() < end:
            time.sleep(PEERS_POLL_S)
    except RuntimeError:
        pass


def first_line(error: BaseException) -> str:
    """The line that says something: gloo and NCCL begin with where they are."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)[:400]}" if lines else type(error).__name__


if __name__ == "__main__":
    main(sys.argv[1:])

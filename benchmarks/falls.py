"""From the kill of one process to the fall being known, and to all processes of all ranks being gone.

    python -m benchmarks.falls                 # 20 kills of each kind with stand-ins
    python -m benchmarks.falls --vllm 5        # 5 of each with real vLLM, and the same kills on bare vLLM

Known: the event stream told of `recovering`. Gone: nothing in /proc is left of any rank. Seconds.
"""

import argparse
import os
import signal
import statistics
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.bed.gang import Gang, Rank, hand_started
from tests.bed.local_set import Bed, Deployment, Process, Watch, local_bed
from tests.bed.stand_in import make_stand_in

ROOT = Path(__file__).parent.parent
ENGINE, MODELS = ROOT / ".venv-vllm", ROOT / ".models"
KINDS = (
    ("follower's worker", 1, "VLLM::Worker"),
    ("EngineCore", 0, "VLLM::EngineCore"),
    ("API server (rank 0's launcher)", 0, "leader"),
    ("headless launcher (rank 1's)", 1, "leader"),
)
FALLS_OF_ONE = 9
"""A deployment may fall ten times a day."""
BARE_WATCH_S = 20.0
BOOT_S = 300.0
POLL_S = 0.003


@dataclass
class Times:
    kind: str
    kills: int = 0
    known: list[float] = field(default_factory=list)
    gone: list[float] = field(default_factory=list)

    def row(self, ranks: str) -> str:
        return f"| {ranks} | {self.kind} | {self.kills} | {_figures(self.known)} | {_figures(self.gone)} |"


def _figures(values: list[float]) -> str:
    if not values:
        return f"not within {BARE_WATCH_S:.0f} s"
    return f"{statistics.median(values):.2f} / {max(values):.2f}"


def with_sparkd(bed: Bed, count: int) -> list[Times]:
    found = []
    deployments = _deployments(bed)
    for kind, rank, title in KINDS:
        times = Times(kind)
        for _ in range(count):
            _kill_one(next(deployments), rank, title, times)
        found.append(times)
    deployments.close()  # type: ignore[attr-defined] - it is a generator
    return found


def _deployments(bed: Bed) -> Iterator[Deployment]:
    """The same one, ready, until it has fallen too often; then a new one."""
    number = 0
    while True:
        number += 1
        deployment = bed.up(f"bench{number}", f"restart.budget={FALLS_OF_ONE}")
        try:
            for falls in range(FALLS_OF_ONE):
                deployment.ready(generation=falls + 1, timeout_s=BOOT_S)
                yield deployment
        finally:
            deployment.down()


def _kill_one(deployment: Deployment, rank: int, title: str, times: Times) -> None:
    watch = Watch(deployment.bed.client, deployment.name)
    old, victim = deployment.all_processes(), deployment.process(rank, title)
    time.sleep(1.0)  # a young rank is looked at more often: no kill in its first moments
    at = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    times.kills += 1
    times.gone.append(_gone(old, at, 60.0) or 60.0)
    times.known.append(watch.reached("recovering", at) - at)


def _gone(processes: list[Process], at: float, limit_s: float) -> float | None:
    while time.monotonic() - at < limit_s:
        if not any(process.alive for process in processes):
            return time.monotonic() - at
        time.sleep(POLL_S)
    return None


def with_bare_vllm() -> list[Times]:
    """One kill of each kind; known means that /health says so, or that nobody answers there."""
    found = []
    for kind, rank, title in KINDS:
        times = Times(kind)
        with (
            tempfile.TemporaryDirectory() as folder,
            hand_started(ENGINE / "bin" / "python", str(MODELS / "tiny"), Path(folder)) as gang,
        ):
            gang.ready(BOOT_S)
            shared = {path for one in gang.ranks for path in one.segments()}
            one = gang.ranks[rank]
            victim = one.leader.pid if title == "leader" else _pid(one, title)
            _watch_bare(gang, victim, times)
        for path in shared:  # what vLLM leaves when it is killed
            path.unlink(missing_ok=True)
        found.append(times)
    return found


def _pid(rank: Rank, title: str) -> int:
    return next(pid for name, pid in rank.pids().items() if name.startswith(title))


def _watch_bare(gang: Gang, victim: int, times: Times) -> None:
    at = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    times.kills += 1
    while time.monotonic() - at < BARE_WATCH_S:
        if not times.known and not _healthy(gang.api_port):
            times.known.append(time.monotonic() - at)
        for one in gang.ranks:
            one.leader.poll()
        if not any(one.pids() for one in gang.ranks):
            times.gone.append(time.monotonic() - at)
            return
        time.sleep(0.05)


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--stand-ins", type=int, default=20, metavar="N", help="kills of each kind (default: 20)"
    )
    parser.add_argument("--vllm", type=int, default=0, metavar="N", help="and with real vLLM (default: none)")
    options = parser.parse_args()
    print("| ranks | killed | kills | known: median / worst | all gone: median / worst |")
    print("|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="sparkd-bench-") as name:
        folder = Path(name)
        if options.stand_ins:
            (folder / "models" / "tiny").mkdir(parents=True)
            (folder / "models" / "tiny" / "config.json").write_text("{}")
            with local_bed(folder / "stand-ins", make_stand_in(folder / "engine"), folder / "models") as bed:
                _print(with_sparkd(bed, options.stand_ins), "sparkd, stand-ins")
        if options.vllm:
            with local_bed(folder / "vllm", ENGINE, MODELS) as bed:
                _print(with_sparkd(bed, options.vllm), "sparkd, vLLM")
            _print(with_bare_vllm(), "bare vLLM, `/health` asked")


def _print(found: list[Times], ranks: str) -> None:
    for times in found:
        print(times.row(ranks), flush=True)


if __name__ == "__main__":
    main()

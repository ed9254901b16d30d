"""Time from the command to the first answered completion: `sparkd up` against the same ranks started by hand.

    python -m benchmarks.boot            # 3 pairs with real vLLM, in alternating order

Both get the same argv and environment, from `sparkd plan`. `sparkd up` includes its own start: a coordinator,
two agents, the preflight, and the canary. By hand, the same completion is asked until it is answered.
"""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.bed.gang import Rank

ROOT = Path(__file__).parent.parent
SPARKD = (sys.executable, "-P", "-m", "sparkd")
BOOT_S = 300.0
POLL_S = 0.05


class Home:
    """A user of sparkd with nothing running, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("SPARKD_", "XDG_"))} | {
            "HOME": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
            "SPARKD_CONFIG_DIR": str(folder / "config"),
            "SPARKD_ENGINE": str(ROOT / ".venv-vllm"),
            "SPARKD_MODELS": str(ROOT / ".models"),
        }
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.words = ("tiny", "--local", "2", "--set", f"api.port={free.getsockname()[1]}")

    def run(self, *words: str) -> str:
        return subprocess.run(
            [*SPARKD, *words], env=self.env, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    def plan(self) -> Any:
        return json.loads(self.run("plan", *self.words, "-o", "json"))


def by_sparkd(home: Home) -> float:
    begun = time.monotonic()
    try:
        home.run("up", *home.words)
        return time.monotonic() - begun
    finally:
        home.run("down", "--all")


def by_hand(home: Home) -> float:
    plan = home.plan()
    allowed = {key: home.env[key] for key in ("PATH", "HOME", "LANG") if key in home.env}
    begun, ranks = time.monotonic(), []
    try:
        for rank in plan["ranks"]:
            env = allowed | {entry["name"]: entry["value"] for entry in rank["env"]}
            ranks.append(
                subprocess.Popen(
                    rank["argv"],
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )
        while not _answers(f"http://{plan['api']}"):
            if any(rank.poll() is not None for rank in ranks) or time.monotonic() - begun > BOOT_S:
                raise SystemExit("the ranks started by hand did not come up")
            time.sleep(POLL_S)
        return time.monotonic() - begun
    finally:
        _end(ranks)


def _answers(url: str) -> bool:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Say something."}], "max_tokens": 8}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _end(leaders: "list[subprocess.Popen[bytes]]") -> None:
    """The head first and gently; a follower would need 11 s, and leaves its shared memory when killed."""
    nowhere = Path(os.devnull)
    ranks = [Rank(number, leader, nowhere, nowhere) for number, leader in enumerate(leaders)]
    shared = {path for rank in ranks for path in rank.segments()}
    for rank in ranks:
        os.killpg(rank.leader.pid, signal.SIGTERM if rank.number == 0 else signal.SIGKILL)
        rank.leader.wait()
    for path in shared:
        path.unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=3, metavar="N")
    pairs = parser.parse_args().pairs
    print("| pair | sparkd up | by hand |\n|---|---|---|", flush=True)
    rows = []
    with tempfile.TemporaryDirectory(prefix="sparkd-bench-") as folder:
        home = Home(Path(folder))
        by_hand(home)  # not counted: the first run of a user fills vLLM's caches, which takes 40 s
        for number in range(1, pairs + 1):
            order = (by_sparkd, by_hand) if number % 2 else (by_hand, by_sparkd)
            took = {run.__name__: run(home) for run in order}
            rows.append((took["by_sparkd"], took["by_hand"]))
            print(f"| {number} | {rows[-1][0]:.1f} s | {rows[-1][1]:.1f} s |", flush=True)
    ours, hand = (statistics.median(column) for column in zip(*rows, strict=True))
    print(f"| median | {ours:.1f} s | {hand:.1f} s |\n\nsparkd / by hand: {ours / hand:.2f}")


if __name__ == "__main__":
    main()

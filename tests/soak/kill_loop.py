"""Real vLLM, killed again and again: one generation lives after each kill, and no orphan is left.

python -m tests.soak.kill_loop 20
"""

import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.bed.local_set import Deployment, Process, all_gone, ask, local_bed, segments

ROOT = Path(__file__).parents[2]
BOOT_S = 240.0
TURNS_EACH = 9
VICTIMS = ((0, "leader"), (0, "VLLM::EngineCore"), (0, "VLLM::Worker"), (1, "leader"), (1, "VLLM::Worker"))


def marked() -> set[int]:
    """Pids of every process on this machine that belongs to a rank of ours, by its environment."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if b"SPARKD_RANK=sparkd-loop-" in environment:
            found.add(int(folder.name))
    return found


def one_turn(deployment: Deployment, turn: int, rng: random.Random) -> float:
    """Kill one process of the gang; gives the seconds until it was ready again."""
    before = deployment.ready(timeout_s=BOOT_S)
    old: list[Process] = deployment.all_processes()
    used = segments(old)
    rank, title = rng.choice(VICTIMS)
    begun = time.monotonic()
    os.kill(deployment.process(rank, title).pid, signal.SIGKILL)
    again = deployment.ready(generation=before.generation + 1, timeout_s=BOOT_S)
    took = time.monotonic() - begun
    all_gone(old, 1.0)
    assert not any(path.exists() for path in used), "shared memory of a dead generation is left"
    living = {process.pid for process in deployment.all_processes(again.generation)}
    strangers = marked() - living
    assert not strangers, f"orphans: {strangers}"
    ask(deployment)
    sys.stdout.write(f"{turn:3}  {title} of rank {rank}: generation {again.generation} after {took:.1f} s\n")
    sys.stdout.flush()
    return took


def main(words: list[str]) -> int:
    turns = int(words[0]) if words else 20
    rng = random.Random(turns)
    with (
        tempfile.TemporaryDirectory() as folder,
        local_bed(Path(folder), ROOT / ".venv-vllm", ROOT / ".models") as bed,
    ):
        taken: list[float] = []
        while len(taken) < turns:
            # A deployment may fall ten times a day; then the next one has its turn.
            deployment = bed.up(f"loop-{len(taken)}", f"restart.budget={TURNS_EACH + 1}")
            for _ in range(min(TURNS_EACH, turns - len(taken))):
                taken.append(one_turn(deployment, len(taken) + 1, rng))
            deployment.down()
            assert not marked(), "something is left after down"
        taken.sort()
    sys.stdout.write(f"{turns} kills, ready again after {taken[len(taken) // 2]:.1f} s (median)\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

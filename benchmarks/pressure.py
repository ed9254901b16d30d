"""How a rank that ruins its node's memory is ended: `.venv/bin/python -m benchmarks.pressure [RUNS]`.

A real agent on this machine, its floor moved so that the machine's own memory is never short (see
`tests/bed/pressure.py`): a rank that takes 1 GiB a second, and as root one that thrashes in a control group.
"""

import os
import sys
import tempfile
from pathlib import Path

from sparkd.records.defaults import GIB
from tests.bed.pressure import TooBusy, eat, memory_group, thrash


def main(runs: int) -> int:
    failures = 0
    for run in range(runs):
        with tempfile.TemporaryDirectory(prefix="sparkd-pressure-") as name:
            try:
                story, floor = eat(Path(name), GIB)
            except TooBusy as busy:
                print(f"eats {run + 1:2}: the machine was too busy to eat so fast: {busy}", flush=True)
                continue
            fine = story.lowest > floor and max(story.answers) < 1.0
            failures += not fine
            above = (story.lowest - floor) / GIB
            print(
                f"eats {run + 1:2}: {'ok  ' if fine else 'FAIL'} {above:+.2f} GiB above the floor; {story}",
                flush=True,
            )
    for run in range(runs if os.getuid() == 0 else 0):
        with (
            tempfile.TemporaryDirectory(prefix="sparkd-pressure-") as name,
            memory_group("sparkd-bench") as group,
        ):
            story = thrash(Path(name), group)
            fine = max(story.answers) < 1.0
            failures += not fine
            print(f"thrashes {run + 1:2}: {'ok  ' if fine else 'FAIL'} {story}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10))

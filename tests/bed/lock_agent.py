"""Writes sparkd/enrol/agent.lock anew, when a version is to change: `python -m tests.bed.lock_agent`.

The wheels of every node that sparkd supports are fetched once, and their hashes written down.
"""

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

LOCK = Path(__file__).parents[2] / "sparkd" / "enrol" / "agent.lock"
WANTED = ("h11==0.16.0", "jeepney==0.9.0", "msgspec==0.23.0", "psutil==7.2.2")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("aarch64", "x86_64")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for python in PYTHONS:
            for machine in MACHINES:
                words = ["download", "--no-deps", "--only-binary=:all:", "--dest", folder]
                words += ["--implementation", "cp", "--python-version", python]
                for tag in ("manylinux_2_17", "manylinux2014", "manylinux_2_28"):
                    words += ["--platform", f"{tag}_{machine}"]
                subprocess.run([sys.executable, "-m", "pip", *words, *WANTED], check=True)
        lines = [
            "# What an agent needs on a node: Linux, aarch64 and x86_64. Made by tests/bed/lock_agent.py."
        ]
        for wanted in WANTED:
            stem = wanted.replace("==", "-") + "-"
            found = sorted(file for file in Path(folder).glob("*.whl") if file.name.startswith(stem))
            hashes = [f"    --hash=sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}" for file in found]
            lines.append(" \\\n".join([wanted, *hashes]))
    LOCK.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

"""holder.py: keeps a room's namespaces. Prepares its mounts, says `ready`, and stays until its input ends."""

import os
import subprocess
import sys
from pathlib import Path


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


mount("--make-rprivate", "/")
mount("-t", "tmpfs", "-o", "size=8g", "shm", "/dev/shm")
# A sysfs of this network namespace; the control groups stay where they were.
groups = Path(sys.argv[1])
groups.mkdir(parents=True, exist_ok=True)
mount("--rbind", "/sys/fs/cgroup", str(groups))
mount("-t", "sysfs", "sysfs", "/sys")
mount("--rbind", str(groups), "/sys/fs/cgroup")
subprocess.run(["umount", "--lazy", str(groups)], check=True)
sys.stdout.write("ready\n")
sys.stdout.flush()
while os.read(0, 4096):
    pass

"""holder.py FLOOR: PID 1 of a room. Prepares its mounts, says `ready`, and stays until its input ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path


def prepare(floor: str) -> None:
    # /run first: systemd-nspawn keeps books there, and they must not be the machine's.
    mount("-t", "tmpfs", "-o", "mode=755", "run", "/run")
    # A sysfs of this network namespace, read-only: systemd-nspawn then asks no udev about our interfaces.
    Path("/run/groups").mkdir()
    mount("--rbind", "/sys/fs/cgroup", "/run/groups")
    mount("-t", "sysfs", "-o", "ro", "sysfs", "/sys")
    mount("--rbind", "/run/groups", "/sys/fs/cgroup")
    subprocess.run(["umount", "--lazy", "/run/groups"], check=True)
    Path(floor).mkdir()
    mount("-t", "tmpfs", "-o", "mode=755", "floor", floor)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


prepare(sys.argv[1])
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # reaps what is left to us
sys.stdout.write("ready\n")
sys.stdout.flush()
while os.read(0, 4096):
    pass

"""The root file system that all nodes share, read-only below their own disks."""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PACKAGES: Final = (
    "ca-certificates",
    "dbus",
    "iproute2",
    "iputils-ping",
    "libfaketime",  # a node's clock can be set apart
    "libnuma1",  # vLLM's CPU kernels link against it
    "openssh-client",
    "openssh-server",
    "python3",
    "python3-venv",
    "sudo",
    "systemd",
    "systemd-sysv",
)
ENGINE: Final = "/opt/vllm"
"""A virtual environment of the node's own python; the packages in it come from the machine's."""

_RECIPE: Final = "2"
"""Changes with what is done to the packages below."""


def cache() -> Path:
    """Outside the repository: what labs of all checkouts share."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sparkd-lab"


def image() -> Path:
    """The image's folder; made in a minute or two where it is not in the cache.

    An image is known by the packages in it, so a changed list makes a new one and leaves the old one for
    other checkouts.
    """
    mirror, suite = _source()
    key = hashlib.sha256("\n".join([_RECIPE, platform.machine(), suite, *PACKAGES]).encode()).hexdigest()[:12]
    base = cache()
    base.mkdir(parents=True, exist_ok=True)
    made = base / key
    with _locked(base / f"{key}.lock"):
        if not made.exists():
            half = base / f"{key}.half"
            shutil.rmtree(half, ignore_errors=True)
            sys.stderr.write(f"lab: making the nodes' image in {made} (a minute or two)\n")
            _make(half, mirror, suite)
            half.rename(made)
    return made


def _make(folder: Path, mirror: str, suite: str) -> None:
    words = [
        "debootstrap",
        "--variant=minbase",
        f"--include={','.join(PACKAGES)}",
        suite,
        str(folder),
        mirror,
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-5:])
        raise RuntimeError(f"debootstrap failed:\n{tail}\n{done.stderr}")
    python = ["chroot", str(folder), "python3", "-m", "venv", "--without-pip", ENGINE]
    subprocess.run(python, check=True)
    # What must differ between machines is made on each; what only costs boot time is not started.
    for key in (folder / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    (folder / "etc/machine-id").unlink()
    shutil.rmtree(folder / "var/cache/apt/archives", ignore_errors=True)
    for unit in ("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer"):
        mask = folder / "etc/systemd/system" / unit
        mask.symlink_to("/dev/null")
    wants = folder / "etc/systemd/system/multi-user.target.wants"
    (wants / "systemd-networkd.service").symlink_to("/lib/systemd/system/systemd-networkd.service")


def _source() -> tuple[str, str]:
    """Mirror and suite from this machine's own apt: no other source is known to have them."""
    suite = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    for file in sorted(Path("/etc/apt").glob("sources.list.d/*.sources")):
        for stanza in file.read_text().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line)
            if suite in fields.get("Suites", "").split() and "main" in fields.get("Components", "").split():
                return fields["URIs"].split()[0], suite
    for file in (Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt").glob("sources.list.d/*.list"))):
        for line in file.read_text().splitlines() if file.exists() else ():
            kind, _, rest = line.partition(" ")
            words = rest.rpartition("]")[2].split()
            if kind == "deb" and words[1:2] == [suite] and "main" in words[2:]:
                return words[0], suite
    raise RuntimeError(f"apt's sources name no mirror with {suite!r} main; the lab needs Debian or Ubuntu")


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.stdout.write(f"{image()}\n")
